# make book · make test · make install · make lab: each sets up what it needs.
# Variables: PYTHON (the interpreter the environments are made with), TARGET (auto, or plan: start no engine), ONLY (one page),
# AS_BUILT (of make test: 1 compares what make book ran, where nothing has changed since, in place of running it again).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TARGET ?= auto
ONLY ?=
AS_BUILT ?=
PORT ?= 8080
PY := .venv/bin/python
export PYTHON

# A stamp lies in the environment it stands for, so that removing the environment removes the stamp.
BOOK := .venv/.stamp-book
ENGINE := .venv-engine/.stamp-engine
# An environment keeps the Python it was made with: naming another one later is said to have no effect.
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
MADE_WITH := $(shell test ! -x $(PY) || test "$$($(PY) -V)" = "$$($(PYTHON) -V 2>&1)" || $(PY) -V)
ifneq ($(MADE_WITH),)
$(warning .venv was made with $(MADE_WITH) and keeps it; to change to '$(PYTHON)': rm -r .venv .venv-engine)
endif
endif
ifeq ($(filter auto plan,$(TARGET)),)
$(error TARGET is auto or plan, not '$(TARGET)')
endif
# With TARGET=plan no engine is needed. Chapters that are about a start always start their own, also where a server is named.
NEEDED := $(BOOK) $(if $(filter plan,$(TARGET)),,$(ENGINE))

.PHONY: help book test gates fast quick test-arm test-clients install engine lab serve-site refresh check-drift clean

help:  ## this list
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "variables: PYTHON=python3.12  TARGET=plan (start no engine)  ONLY=06_launch (one page)  PORT=8080 (serve-site)"
	@echo "           AS_BUILT=1 (test: compare the outputs of the last make book, where nothing has changed since)"

$(BOOK): requirements.txt pyproject.toml tools/setup.sh
	@tools/setup.sh book
	@touch $@

$(ENGINE): requirements-torch.txt requirements-engine.txt tools/setup.sh tools/repair_engine.py | $(BOOK)
	@tools/setup.sh engine
	@touch $@

book: $(NEEDED)  ## run the chapters that changed and build the site
	@$(PY) -m sparkbook.site build --target $(TARGET) $(if $(ONLY),--only $(ONLY))
	@test ! -f _build/html/index.html || echo "The site: _build/html/index.html (to look at it: make serve-site)"

test: $(BOOK) $(ENGINE)  ## run the tests and compare every notebook's outputs with a fresh run
	@$(PY) -m pytest --nbval -n 2 -m "not clients" $(if $(AS_BUILT),--as-built) tests notebooks

test-clients: $(BOOK) $(ENGINE)  ## try other people's clients against the embedded engine (2.5 GB from PyPI and npm)
	@$(PY) -m pytest -q -m clients tests/clients

gates: $(BOOK)  ## check format, lint and types
	@.venv/bin/ruff format --check --quiet . || { echo "Not formatted: run .venv/bin/ruff format"; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy

fast: $(BOOK)
	@$(PY) -m pytest -q -n 2 -m "not slow and not engine and not kernel and not site and not browser and not docker and not cluster and not nvcc and not clients and not proxies and not monitor" tests

quick: gates fast  ## run the gates and the fast tests only: no engine, no kernel, no browser, no docker, no cluster, no nvcc

test-arm:  ## run the fast tests on Arm, as a Spark is (elsewhere in an emulated Debian, as root)
	@tools/arm64.sh make fast

install:  ## put the command `sparkbook` on your PATH, without vLLM and Jupyter (uv or pipx)
	@tools/setup.sh install

engine: $(ENGINE)  ## only make the engine's environment

lab: $(NEEDED)  ## open JupyterLab on the chapters
	@.venv/bin/jupyter lab --ip 127.0.0.1 --notebook-dir notebooks

serve-site: $(BOOK)  ## show the built site on this machine's loopback address
	@$(PY) -m sparkbook.site serve --port $(PORT)

refresh: $(BOOK) $(ENGINE)  ## run the committed notebooks again, in place, after a change
	@$(PY) -m sparkbook.site refresh $(if $(ONLY),--only $(ONLY))

check-drift: $(BOOK) $(ENGINE)  ## ask what moved since: vLLM releases, recipes, links, known vulnerabilities, outputs
	@$(PY) tools/check_drift.py

clean:  ## remove everything built; the environments and the converted model stay
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis
