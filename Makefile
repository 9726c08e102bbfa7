# `make demo` runs the main job, `make test` the tests. Both set up everything they need first, and say what they do.
# `make test VENV=.venv-3.13 PYTHON=python3.13` does it with another Python, in an environment beside the usual one.

SHELL := /bin/bash
export VENV ?= .venv
export PYTHON ?= python3
PROGRAM := $(VENV)/.program
STAMP := $(VENV)/.installed

.PHONY: demo test quick lint coverage bench kernels image package docs clean setup packages demo-packages

demo: demo-packages $(PROGRAM)
	@$(VENV)/bin/python -m pointsman demo

test: setup
	@scripts/test

quick: $(STAMP)
	@scripts/quick

lint: $(STAMP)
	@scripts/lint

coverage: setup
	@scripts/coverage

kernels: setup
	@scripts/packages kernels
	@$(VENV)/bin/python -m tests.kernel.qemu --json bench/results/kernels.json
	@$(VENV)/bin/python -m bench report

bench: setup
	@$(VENV)/bin/python -m bench all

image: setup
	@scripts/packages image
	@$(VENV)/bin/python -m scripts.release.image

package: setup
	@$(VENV)/bin/python -m scripts.release.package

docs: $(PROGRAM)
	@echo "==> site generator into $(VENV)"
	@scripts/venv $(VENV) docs
	@$(VENV)/bin/mkdocs build --strict --quiet
	@echo "the site is in build/site: open build/site/index.html, or run $(VENV)/bin/mkdocs serve"

setup: packages $(STAMP)

packages:
	@scripts/packages

demo-packages:
	@scripts/packages demo

$(PROGRAM): pyproject.toml requirements/run.txt requirements/build.txt
	@echo "==> virtual environment in $(VENV), Pointsman into it"
	@scripts/venv $(VENV)
	@touch $@

$(STAMP): $(PROGRAM) requirements/dev.txt
	@echo "==> development tools into $(VENV)"
	@scripts/venv $(VENV) dev
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .uml .kernels .coverage* build dist
