# The two commands of README.md are `make demo` and `make test`; everything they need is made here.
PYTHON ?= python3
TORCH ?= 2.13.0
MINDSPORE ?= 2.10.0
MSPROF_ANALYZE ?= 26.2.0
PADDLE ?= 3.3.1
JAX ?= 0.10.2
ENV := .envs/torch
BIN := $(ENV)/bin
SITE := .envs/site

QUIET := --quiet --disable-pip-version-check
#: What an install of stepscope depends on: pyproject.toml or the C sources changing installs again.
SOURCES := pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch])
#: Python processes of one run of the tests: two for PyTorch, which has most of them, one for another framework.
WORKERS ?= 2
FRAMEWORK_WORKERS ?= 1

# Two targets at a time: environments are made, and frameworks tested, side by side.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=2 --output-sync=line
endif

.PHONY: demo test test-all environments lint docs site gpu-check bench clean

# Train a small conv net under `stepscope run` and print where its steps go.
demo: $(ENV)/.ready
	$(BIN)/stepscope run --output stepscope-runs examples/train_conv.py

# Each framework has an environment of its own, which runs the tests of that framework (tests/frameworks/conftest.py).
FRAMEWORKS := mindspore paddle jax
ENVIRONMENTS := $(ENV)/.test $(FRAMEWORKS:%=.envs/%/.ready) .envs/msprof/.ready

# The quick size of every test; `make test-all` adds the slow tests, and the others at their full size (tests/sizes.py).
test: lint test-quick-torch $(FRAMEWORKS:%=test-quick-%)

test-all: test
	$(MAKE) test-rest-torch $(FRAMEWORKS:%=test-rest-%)

# An install replaces the C library in src/, so no test runs before every environment is there.
test-quick-torch test-rest-torch: test-%-torch: environments
	$(BIN)/python -m pytest -q --size=$* --numprocesses $(WORKERS) --dist loadfile

define framework_tests
test-quick-$(1) test-rest-$(1): test-%-$(1): environments
	.envs/$(1)/bin/python -m pytest -q --size=$$* --numprocesses $(FRAMEWORK_WORKERS) --dist loadfile tests/frameworks
endef
$(foreach name,$(FRAMEWORKS),$(eval $(call framework_tests,$(name))))

environments: $(ENVIRONMENTS)

lint: $(ENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pages and pictures that are generated from the code.
docs: $(ENV)/.test
	$(BIN)/python -m stepscope.trace.schema > docs/tables.md
	$(BIN)/python -m stepscope.collect.options > docs/options.md
	$(BIN)/python docs/make_pictures.py

# The documents as a web site in build/site, with an API page from the docstrings; a broken link is an error.
site: $(SITE)/.ready
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

# On a machine with an NVIDIA GPU: torch as that machine has it; elsewhere every test skips and says why.
gpu-check: .envs/gpu/.ready
	.envs/gpu/bin/python -m pytest -q tests/gpu

# By hand; the figures and the commands are in docs/performance.md.
bench: $(ENV)/.test
	@echo "Run one at a time on a quiet machine:"; for file in benchmarks/[a-z]*.py; do echo "  $(BIN)/python $$file --help"; done

# Stamps carry the time of the last successful install. Frameworks download side by side; `flock` lets one install of
# stepscope at a time build in src/.
install = .envs/$(1)/bin/python -m pip install $(QUIET)

define made
$(PYTHON) -m venv .envs/$(1)
$(call install,$(1)) --upgrade pip
$(call install,$(1))
endef

.envs/torch/.framework:
	$(call made,torch) torch==$(TORCH)
	touch $@

# MindSpore 2.10 is compiled against NumPy 1.
.envs/mindspore/.framework:
	$(call made,mindspore) mindspore==$(MINDSPORE) 'numpy<2'
	touch $@

.envs/paddle/.framework:
	$(call made,paddle) paddlepaddle==$(PADDLE)
	touch $@

.envs/jax/.framework:
	$(call made,jax) jax==$(JAX)
	touch $@

$(ENV)/.ready: .envs/torch/.framework $(SOURCES)
	flock .envs $(call install,torch) --editable .
	touch $@

# HolisticTraceAnalysis is an oracle for tests and a peer for benchmarks; without its notebook dependencies.
$(ENV)/.test: $(ENV)/.ready
	$(call install,torch) --group test
	$(call install,torch) --no-deps HolisticTraceAnalysis
	touch $@

.envs/mindspore/.ready: KEEP := 'numpy<2'
$(FRAMEWORKS:%=.envs/%/.ready): .envs/%/.ready: .envs/%/.framework $(SOURCES)
	flock .envs $(call install,$*) --editable . --group frameworks $(KEEP)
	touch $@

# Ascend's analysis tool, which has to open what we export; it pins nothing, so it lives alone.
.envs/msprof/.ready:
	$(call made,msprof) msprof-analyze==$(MSPROF_ANALYZE)
	touch $@

# It reads the sources without importing them, so stepscope and the frameworks are not in it.
$(SITE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install $(QUIET) --upgrade pip
	$(SITE)/bin/python -m pip install $(QUIET) --group docs
	touch $@

.envs/gpu/.ready: $(SOURCES)
	$(PYTHON) -m venv --system-site-packages .envs/gpu
	flock .envs $(call install,gpu) --editable '.[nvidia]' pytest
	touch $@

clean:
	rm -rf .envs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis stepscope-runs
