"""What DeepSpeed adds around a step: partitions, masters, buckets, optimizer states, each as blocks on a timeline.

One module per way of keeping model states: plain.py (stage 0), zero12.py (stages 1 and 2), zero3.py (stage 3).
The order of requests is that of DeepSpeed 0.19.8, so that peaks inside a phase fall where they fall in a run.
"""
