# make repo MODEL=minilm    build a model into model_repo/
# make serve                serve model_repo/ with Triton
# make smoke MODEL=minilm   call it and compare with eager PyTorch
# make lint                 check model_repo/ by the server's own rules
# make test                 what CI runs

PYTHON ?= python3
MODEL ?= minilm
REPO ?= model_repo
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
# More options of the command, for example ARGS="--compiler tensorrt_rtx".
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev

.PHONY: help setup setup-dev repo plan serve smoke doctor lint check test test-all bench clean
.DEFAULT_GOAL := help

help:
	@sed -n '/^#/!q;s/^# //p' Makefile

setup: $(READY)
setup-dev: $(READY_DEV)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=python3.12")'
	@echo "setting up $(VENV) (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[onnxruntime,serve,examples]'
	@touch $@

$(READY_DEV): $(READY)
	@$(PIP) --editable '.[onnxruntime,tensorrt-rtx,serve,examples,dev]'
	@touch $@

repo: $(READY)
	$(BIN)/triton-repo build $(MODEL) --repo $(REPO) $(ARGS)

plan: $(READY)
	$(BIN)/triton-repo plan $(MODEL) $(ARGS)

serve: $(READY)
	$(BIN)/triton-repo serve --repo $(REPO) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT) $(ARGS)

smoke: $(READY)
	$(BIN)/triton-repo smoke $(MODEL) --repo $(REPO) $(ARGS)

doctor: $(READY)
	$(BIN)/triton-repo doctor

lint: $(READY)
	$(BIN)/triton-repo lint $(REPO) $(ARGS)

check: $(READY_DEV)
	$(BIN)/ruff format --check builder tests benchmarks examples
	$(BIN)/ruff check builder tests benchmarks examples
	$(BIN)/mypy

# Files run side by side, so each needs no threads of its own.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

test-all:
	$(MAKE) test ARGS="-m 'slow or not slow' $(ARGS)"

bench: $(READY_DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
