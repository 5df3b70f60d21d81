# One environment in .venv, made once. Every target that needs it makes it; doing it again does nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/video_text
export TORCH_EXTENSIONS_DIR ?= $(abspath $(VENV))/torch_extensions
export HF_HUB_OFFLINE ?= 1

.PHONY: help install demo test quick prove lab lint notebooks clean
help:
	@echo "make demo    install, then fine-tune video -> text on two CPU ranks and show that it learnt (8 minutes)"
	@echo "make lab     open JupyterLab on notebooks/00_start_here.ipynb"
	@echo "make test    all tests, minutes per part      make quick   the fast ones"
	@echo "make prove   the long proofs (three seeds); writes benchmarks/results"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "make: Python 3.11 or newer is needed, $(PYTHON) is older: make PYTHON=/path/to/python3.11"; exit 2; }
	@command -v $${CXX:-g++} >/dev/null || command -v clang++ >/dev/null || \
	  { echo "make: a C++ compiler is needed (DeepSpeed compiles a small operator): apt install g++"; exit 2; }
	@# A node's own torch (built for its CUDA) stays: the environment then sees the packages of $(PYTHON).
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  $$($(PYTHON) -c "import importlib.util as u; print('--system-site-packages' * bool(u.find_spec('torch')))")
	@echo "installing into $(VENV) (about 6 GB with torch; 3 to 10 minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@echo "compiling DeepSpeed's CPU operator (once, 1 to 2 minutes)"
	@$(BIN)/python -c "from course_lib.learn.cpu_op import prepare_cpu_ranks as start; start().wait()"
	@touch $@

demo: install
	@$(BIN)/python -m course_lib.tasks.demo $(DEMO)

lab: install
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here.ipynb

test: install
	@$(BIN)/python tests/run_parts.py all

quick: install
	@$(BIN)/python tests/run_parts.py quick

prove: install
	@$(BIN)/python benchmarks/prove_video_text.py

lint: install
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

notebooks: install
	@$(BIN)/python -m course_lib.learn.notebooks build

clean:
	rm -rf runs build .pytest_cache .ruff_cache .hypothesis
