# The course in an image: for a room without internet, and for rented nodes.
#
# Build where a package registry can be reached, then carry the image over (docker save / docker load):
#   docker build -t course .
# On a node whose own image has torch and CUDA, build on that image; its torch is left alone:
#   docker build --build-arg BASE=IMAGE_OF_THE_NODE -t course .
# Run (the ranks talk through /dev/shm, whose default of 64 MB is too small):
#   docker run --rm -it --shm-size=2g -p 8888:8888 course              JupyterLab
#   docker run --rm -it --shm-size=2g --gpus all course make demo      the main path, ends with a report
#
# The base needs Python 3.11 or newer, make, and a C++ compiler (DeepSpeed compiles an op on its first run). The
# default has them; the -slim variants of python do not.
ARG BASE=python:3.11
FROM ${BASE}

WORKDIR /course
COPY pyproject.toml environment.yml Makefile README.md LICENSE CONTRIBUTING.md ./
COPY course_lib course_lib
COPY examples examples
COPY notebooks notebooks
COPY tests tests
COPY benchmarks benchmarks
RUN make install

# Nothing is looked up on a hub at run time.
ENV HF_HUB_OFFLINE=1
EXPOSE 8888
CMD [".venv/bin/jupyter", "lab", "--ip=0.0.0.0", "--allow-root", "--no-browser", "notebooks/00_start_here.ipynb"]
