# The only entry points, at home and in CI. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Two cores are shared by the tests; BLAS threads on 20 x 20 matrices only cost.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# One worker a core; a file stays in one worker, so that its servers are started once.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile

.PHONY: help setup demo check test test-long bench lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv with everything, so that .venv/bin/tuner works

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "error: no venv module: apt-get install python3-venv" >&2; exit 2; }
	@echo "installing pinned packages into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP)  ## watch the daemon learn a simulated fleet: fifteen minutes of it in less than one
	@$(BIN)/tuner demo

check: $(STAMP)  ## lint, format and types; warnings are errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## checks and the fast tests: what CI runs; a missing server is listed as NOT RUN
	$(BIN)/pytest -q $(PARALLEL) -m "not long"

test-long: check  ## all tests, the long ones too: minutes
	$(BIN)/pytest -q $(PARALLEL)

bench: $(STAMP)  ## recovery of known truth, prediction of unseen load, speed; seeds from the commit
	$(BIN)/python -m bench

lock: $(STAMP)  ## renew the hash-locked requirements from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --quiet -o requirements-dev.txt

clean:  ## remove what the targets made
	rm -rf $(VENV) out .mypy_cache .pytest_cache .ruff_cache .hypothesis
