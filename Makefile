# `make demo` runs the main job, `make test` the tests. Both set up everything they need first, and say what they do.

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean setup packages

demo: setup
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

$(STAMP): pyproject.toml
	@echo "==> virtual environment in $(VENV), Pointsman and its development tools into it"
	@scripts/venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .uml build dist
