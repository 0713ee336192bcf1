# One environment, .venv, built from exact versions and rebuilt when these change. `make help` lists the targets.
#
# TORCH is what pip is asked for as PyTorch, options included; the choice is remembered in .torch until another one is given:
#   make setup                                                                                    the default
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"             the CPU build, on Linux
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130"           a CUDA build
#   make setup TORCH="torch"                                                                      the newest; on a Mac it has MPS
# Where PyPI is all that pip knows, the default is a CUDA build on Linux (gigabytes) and the MPS and CPU build on a Mac.

SHELL := /bin/bash
PYTHON ?= python3
TORCH ?= $(or $(shell cat .torch 2>/dev/null),torch==2.13.0)
JOBS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := requirements/lock.txt
REQUIREMENTS := $(LOCK) requirements/demo.txt requirements/cpu-tests.txt
# One thread per test worker: the workers share the cores. No test needs the Hub.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-gpu check format wheel lock clean FORCE

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-9s %s\n", $$1, $$2 }'

setup: .venv/ready  ## make .venv with everything that the other targets need

demo: .venv/ready  ## measure the demo model and write a page of results into runs/
	$(BIN)/sinklab measure demo --out runs

test: .venv/ready  ## run the tests (JOBS=2 workers)
	$(PYTEST) -n $(JOBS)

test-all: .venv/ready  ## run the slow tests too
	$(PYTEST) -n $(JOBS) -m "not gpu"

test-gpu: .venv/ready  ## run the tests that need a CUDA device
	$(PYTEST) -m gpu

check: .venv/ready  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready  ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

wheel: .venv/ready  ## build dist/*.whl and try it in an empty environment
	rm -rf dist build
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	SINKLAB_WHEEL="$$(echo dist/*.whl)" SINKLAB_TORCH="$(TORCH)" $(PYTEST) -m slow tests/test_wheel.py

lock: .torch  ## resolve the newest versions anew and write them to requirements/lock.txt
	$(PYTHON) requirements/lock.py $(LOCK) $(TORCH)

clean:  ## remove what was built and cached; .venv and runs/ stay
	rm -rf build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The choice of PyTorch, rewritten only when it changes, so that everything after it can depend on it.
.torch: FORCE
	@[[ "$$(cat $@ 2>/dev/null)" == "$(TORCH)" ]] || echo "$(TORCH)" > $@

# The lock is complete, so pip has nothing to resolve; PyTorch comes after what it depends on, so its index need hold nothing else.
.venv/locked: $(REQUIREMENTS) .torch
	@echo "Making .venv with $(TORCH): a minute or two, once"
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install -qq --no-deps -r $(LOCK) -r requirements/demo.txt
	@$(PIP) install -qq $(TORCH)
	@$(BIN)/python -c "import triton" 2>/dev/null || $(PIP) install -qq --no-deps -r requirements/cpu-tests.txt
	@touch $@

.venv/ready: .venv/locked pyproject.toml
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@
