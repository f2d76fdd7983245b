# Everything a newcomer types. `make demo` on a fresh machine with Python 3.11+, git and make does all of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,train,postgres
STAMP := $(VENV)/.installed
# Linux wheels of torch for a CPU carry the local version `+cpu` where one is on offer; constraints.txt pins the number.
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help venv demo test check clean
help: ## show what there is to do
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## the environment only, with everything that demo and tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Turnout needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: $(STAMP) ## train a small EAGLE-3 drafter for a real model on this machine (2 to 4 minutes)
	$(BIN)/turnout run eagle3 --set preset=smoke

test: $(STAMP) ## the whole test suite
	$(BIN)/pytest

check: $(STAMP) ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
