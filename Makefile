# Two commands matter: `make demo` and `make test`. Both work on a bare machine with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINIMAL := .venv-minimal
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 2

.PHONY: demo test lint types unit minimal bench docs clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch,hf,polars,eval,dev]'
	touch $@
