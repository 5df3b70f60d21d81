"""What the real model code allocates in one training step, read on the meta device.

recorder.py watches every aten operation; kernels.py stands in for the CUDA kernels that the meta device has not;
step.py runs forward and backward of a shortened model; expand.py gives the result back its full depth.
"""
