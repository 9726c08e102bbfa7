# `make demo` runs the main job, `make test` the tests. Both set up everything they need first, and say what they do.

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
PROGRAM := $(VENV)/.program
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean setup packages demo-packages

demo: demo-packages $(PROGRAM)
	@$(PYTHON) -m pointsman demo

test: setup
	@scripts/test

lint: setup
	@scripts/lint

bench: setup
	@scripts/bench

setup: packages $(STAMP)

packages:
	@scripts/packages

demo-packages:
	@scripts/packages demo

$(PROGRAM): pyproject.toml
	@echo "==> virtual environment in $(VENV), Pointsman into it"
	@scripts/venv $(VENV)
	@touch $@

$(STAMP): $(PROGRAM)
	@echo "==> development tools into $(VENV)"
	@scripts/venv $(VENV) dev
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .uml build dist
