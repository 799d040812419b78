# The two commands of README.md are `make demo` and `make test`; everything they need is made here.
PYTHON ?= python3
TORCH ?= 2.13.0
MINDSPORE ?= 2.10.0
MSPROF_ANALYZE ?= 26.2.0
PADDLE ?= 3.3.1
JAX ?= 0.10.2
#: What JAX programs save with.
ORBAX ?= 0.12.8
GRAIN ?= 0.2.18
# Versions of trainers besides the newest: TRAINERS="transformers==4.57.1 accelerate==1.11.0 lightning==2.5.6 keras==3.12.*"
TRAINERS ?=
# CUPTI with its headers and those of CUDA it includes: the oldest and newest minor of each major that is supported.
CUPTI_oldest := nvidia-cuda-cupti-cu11==11.7.101 nvidia-cuda-runtime-cu11==11.7.99 \
	nvidia-cuda-cupti-cu12==12.0.90 nvidia-cuda-runtime-cu12==12.0.107 \
	nvidia-cuda-cupti==13.0.48 nvidia-cuda-runtime==13.0.48 nvidia-cuda-crt==13.0.48
CUPTI_newest := nvidia-cuda-cupti-cu11==11.8.87 nvidia-cuda-runtime-cu11==11.8.89 \
	nvidia-cuda-cupti-cu12==12.9.79 nvidia-cuda-runtime-cu12==12.9.79 \
	nvidia-cuda-cupti==13.5.25 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37
ENV := .envs/torch
BIN := $(ENV)/bin
SITE := .envs/site

QUIET := --quiet --disable-pip-version-check
#: What an install of stepscope depends on: pyproject.toml or the C sources changing installs again.
SOURCES := pyproject.toml setup.py $(wildcard src/stepscope/native/*.[ch] src/stepscope/native/recorder/hush.*)
#: Python processes of one run of the tests: two for PyTorch, which has most of them, one for another framework.
WORKERS ?= 2
FRAMEWORK_WORKERS ?= 1

# Python keeps what it compiles: the tests start thousands of processes, and each would compile their modules anew.
export PYTHONDONTWRITEBYTECODE :=

# Two targets at a time: environments are made, and frameworks tested, side by side.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=2 --output-sync=line
endif

.PHONY: demo test test-all test-trainers fuzz environments ready page browser lint docs site gpu-check bench clean

# Train a small conv net under `stepscope run`; print where its steps go, and the path of the page that shows it.
demo: $(ENV)/.ready page
	$(BIN)/stepscope run --html --output stepscope-runs examples/train_conv.py

# Each framework has an environment of its own, which runs the tests of that framework (tests/frameworks/conftest.py).
FRAMEWORKS := mindspore paddle jax
CUPTI_WHEELS := .envs/cupti/oldest/.ready .envs/cupti/newest/.ready
ENVIRONMENTS := $(ENV)/.test $(FRAMEWORKS:%=.envs/%/.ready) .envs/trainers/.ready .envs/msprof/.ready $(CUPTI_WHEELS)

# The quick size of every test; `make test-all` adds the slow tests, and the others at their full size (tests/sizes.py).
test: lint test-quick-torch $(FRAMEWORKS:%=test-quick-%) test-quick-trainers
	$(MAKE) test-again SIZE=quick

test-all: test
	$(MAKE) test-rest-torch $(FRAMEWORKS:%=test-rest-%) test-rest-trainers
	$(MAKE) test-again SIZE=full

# Arguments: environment, size, what to test. Tests that end, in a process that does not, are ended with its stacks.
pytest = timeout --signal ABRT --kill-after 60 3600 \
	.envs/$(1)/bin/python -m pytest -q -o cache_dir=.pytest_cache/$(1) --size=$(2) $(3)

# Arguments: those and processes. Failed tests are noted; every other way to end is a failure at once.
AGAIN := .pytest_cache/again
tested = $(call pytest,$(1),$(2),$(3) --numprocesses $(4) --max-worker-restart 2 --dist loadfile) \
	|| { test $$? -eq 1 && mkdir -p $(AGAIN) && echo $(3) > $(AGAIN)/$(1); }

# What failed is tested once more when nothing else runs, for tests that compare clocks shared the machine with the others.
# The log keeps the first failure. Without a failed test to repeat, it stays failed.
.PHONY: test-again
test-again:
	@for file in $(wildcard $(AGAIN)/*); do \
		environment=$$(basename $$file); paths=$$(cat $$file); rm $$file; \
		$(call pytest,$$environment,$(SIZE),$$paths --last-failed --last-failed-no-failures=none) || failed=1; \
	done; test -z "$$failed"

# An install replaces the C library in src/, so no test runs before every environment is there; nor before the browser,
# for make would begin other tests while it is looked for, and those of torch take the longest.
ready: environments browser

# Further options of pytest for `test-rest-torch`; .ci/run sets them.
REST :=
test-quick-torch test-rest-torch: test-%-torch: ready
	$(call tested,torch,$*,$(if $(filter rest,$*),$(REST)),$(WORKERS))

$(FRAMEWORKS:%=test-quick-%): test-quick-%: ready
	$(call tested,$*,quick,tests/frameworks,$(FRAMEWORK_WORKERS))

$(FRAMEWORKS:%=test-rest-%): test-rest-%: ready
	$(call tested,$*,rest,tests/frameworks,$(FRAMEWORK_WORKERS))

# Trainers on PyTorch (tests/integrations/conftest.py); those of other frameworks are tested in their environments.
test-quick-trainers test-rest-trainers: test-%-trainers: ready
	$(call tested,trainers,$*,tests/integrations,$(FRAMEWORK_WORKERS))

# All tests of the trainers alone, with the versions in TRAINERS.
test-trainers: environments
	$(call pytest,trainers,full,tests/integrations)

environments: $(ENVIRONMENTS) page

# The browser side of `stepscope view` and `report --html`, built into the package; it needs Node.
BUNDLE := src/stepscope/report/page/bundle
page: $(BUNDLE)/page.js
$(BUNDLE)/page.js: page/package-lock.json page/build.mjs $(wildcard page/src/*.* page/src/*/*.*)
	cd page && npm ci --silent --ignore-scripts && npx tsc --noEmit && node build.mjs

# The browser of the tests: any Chromium that is there, else Debian's.
CHROMIUM := $(firstword $(STEPSCOPE_CHROMIUM) $(shell command -v chromium-headless-shell chromium google-chrome))
browser:
	@test -n "$(CHROMIUM)" || (timeout 600 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends chromium-headless-shell)

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

# 100,000 damaged captures of every format; `make test` tries some, tests/fuzz_guided.py chooses them by coverage.
fuzz: $(ENV)/.test
	POLARS_MAX_THREADS=1 $(BIN)/python -m tests.fuzz

# On a machine with an NVIDIA GPU: torch as that machine has it; elsewhere every test skips and says why.
gpu-check: .envs/gpu/.ready
	.envs/gpu/bin/python -m pytest -q tests/gpu

# By hand; the figures and the commands are in docs/performance.md.
bench: $(ENV)/.test
	@echo "Run one at a time on a quiet machine:"; for file in benchmarks/[a-z]*.py; do echo "  $(BIN)/python $$file --help"; done

# Stamps carry the time of the last successful install. Frameworks download side by side; `flock` lets one install of
# stepscope at a time build in src/. Python compiles a module when it is first imported; most never are.
install = .envs/$(1)/bin/python -m pip install $(QUIET) --no-compile

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
	$(call made,jax) jax==$(JAX) orbax-checkpoint==$(ORBAX) grain==$(GRAIN)
	touch $@

$(ENV)/.ready: .envs/torch/.framework $(SOURCES)
	flock .envs $(call install,torch) --editable .
	touch $@

# HolisticTraceAnalysis is an oracle for tests and a peer for benchmarks; without its notebook dependencies.
$(ENV)/.test: $(ENV)/.ready
	$(call install,torch) --group test
	$(call install,torch) --no-deps HolisticTraceAnalysis
	touch $@

# It adds to the environment of PyTorch: stepscope, torch and what all tests need are those of that one. The stamp holds
# the versions that were asked for; with other ones the environment is made again.
ifneq ($(file <.envs/trainers/.ready),$(TRAINERS))
.PHONY: .envs/trainers/.ready
endif
.envs/trainers/.ready: $(ENV)/.test
	$(PYTHON) -m venv --clear .envs/trainers
	echo "import site; site.addsitedir('$$(echo $(CURDIR)/$(ENV)/lib/python*/site-packages)')" \
		>"$$(echo .envs/trainers/lib/python*/site-packages)/torch.pth"
	$(call install,trainers) --upgrade pip
	$(call install,trainers) --group trainers jax==$(JAX) $(TRAINERS)
	echo '$(TRAINERS)' >$@

.envs/mindspore/.ready: BESIDES := 'numpy<2'
.envs/paddle/.ready: BESIDES := --group paddle
$(FRAMEWORKS:%=.envs/%/.ready): .envs/%/.ready: .envs/%/.framework $(SOURCES)
	flock .envs $(call install,$*) --editable . --group frameworks $(BESIDES)
	touch $@

# Ascend's analysis tool, which has to open what we export; it pins nothing, so it lives alone.
.envs/msprof/.ready:
	$(call made,msprof) msprof-analyze==$(MSPROF_ANALYZE)
	touch $@

# NVIDIA's headers and libraries, which tests compile against and load; they are not installed.
$(CUPTI_WHEELS): .envs/cupti/%/.ready: $(ENV)/.framework
	$(BIN)/python -m pip download $(QUIET) --no-deps --only-binary :all: --dest $(@D) $(CUPTI_$*)
	touch $@

# It reads the sources without importing them, so stepscope and the frameworks are not in it.
$(SITE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install $(QUIET) --upgrade pip
	$(SITE)/bin/python -m pip install $(QUIET) --group docs
	touch $@

.envs/gpu/.ready: $(SOURCES)
	$(PYTHON) -m venv --system-site-packages .envs/gpu
	flock .envs $(call install,gpu) --editable '.[nvidia]' pytest pytest-timeout
	touch $@

clean:
	rm -rf .envs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis stepscope-runs
