# The two commands of README.md are `make demo` and `make test`; everything they need is made here.
PYTHON ?= python3
TORCH ?= 2.13.0
MINDSPORE ?= 2.10.0
MSPROF_ANALYZE ?= 26.2.0
PADDLE ?= 3.3.1
JAX ?= 0.10.2
ENV := .envs/torch
BIN := $(ENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint docs gpu-check bench clean

# Train a small conv net under `stepscope run` and print where its steps go.
demo: $(ENV)/.ready
	$(BIN)/stepscope run --output stepscope-runs examples/train_conv.py

# Frameworks do not live in one environment; each runs the tests of its own (tests/frameworks/conftest.py).
test: $(ENV)/.test lint .envs/mindspore/.ready .envs/paddle/.ready .envs/jax/.ready .envs/msprof/.ready
	$(BIN)/python -m pytest -q --numprocesses auto --dist loadfile
	.envs/mindspore/bin/python -m pytest -q tests/frameworks
	.envs/paddle/bin/python -m pytest -q tests/frameworks
	.envs/jax/bin/python -m pytest -q tests/frameworks

lint: $(ENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pages and pictures that are generated from the code.
docs: $(ENV)/.test
	$(BIN)/python -m stepscope.trace.schema > docs/tables.md
	$(BIN)/python -m stepscope.collect.options > docs/options.md
	$(BIN)/python docs/make_pictures.py

# On a machine with an NVIDIA GPU: torch as that machine has it; elsewhere every test skips and says why.
gpu-check: .envs/gpu/.ready
	.envs/gpu/bin/python -m pytest -q tests/gpu

# By hand; the figures and the commands are in docs/performance.md.
bench: $(ENV)/.test
	@echo "Run one at a time on a quiet machine:"; for file in benchmarks/[a-z]*.py; do echo "  $(BIN)/python $$file --help"; done

# Stamps carry the time of the last successful install; pyproject.toml or the C sources changing installs again.
$(ENV)/.ready: pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
	$(PYTHON) -m venv $(ENV)
	$(PIP) --upgrade pip
	$(PIP) torch==$(TORCH)
	$(PIP) --editable .
	touch $@

# HolisticTraceAnalysis is an oracle for tests and a peer for benchmarks; without its notebook dependencies.
$(ENV)/.test: $(ENV)/.ready
	$(PIP) --group test
	$(PIP) --no-deps HolisticTraceAnalysis
	touch $@

# MindSpore 2.10 is compiled against NumPy 1.
.envs/mindspore/.ready: pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
	$(PYTHON) -m venv .envs/mindspore
	.envs/mindspore/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.envs/mindspore/bin/python -m pip install --quiet mindspore==$(MINDSPORE) 'numpy<2' --editable . --group frameworks
	touch $@

.envs/paddle/.ready: pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
	$(PYTHON) -m venv .envs/paddle
	.envs/paddle/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.envs/paddle/bin/python -m pip install --quiet paddlepaddle==$(PADDLE) --editable . --group frameworks
	touch $@

.envs/jax/.ready: pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
	$(PYTHON) -m venv .envs/jax
	.envs/jax/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.envs/jax/bin/python -m pip install --quiet jax==$(JAX) --editable . --group frameworks
	touch $@

# Ascend's analysis tool, which has to open what we export; it pins nothing, so it lives alone.
.envs/msprof/.ready:
	$(PYTHON) -m venv .envs/msprof
	.envs/msprof/bin/python -m pip install --quiet --disable-pip-version-check msprof-analyze==$(MSPROF_ANALYZE)
	touch $@

.envs/gpu/.ready: pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
	$(PYTHON) -m venv --system-site-packages .envs/gpu
	.envs/gpu/bin/python -m pip install --quiet --editable '.[nvidia]' pytest
	touch $@

clean:
	rm -rf .envs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis stepscope-runs
