# plugml: targets by errand.  `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEED   ?= 1
SEEDS  ?= 200
JOBS   ?= auto
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 1

.PHONY: help demo test test-all test-clients check lint sim bench bench-quick wheel clean

help:  ## list the targets
	@echo 'Try it:'
	@sed -n 's/^\(demo\):.*## /  make \1          /p' $(MAKEFILE_LIST)
	@echo 'Trust it:'
	@sed -n 's/^\(test\):.*## /  make \1          /p; s/^\(test-all\):.*## /  make \1      /p; s/^\(test-clients\):.*## /  make \1  /p; s/^\(sim\):.*## /  make \1           /p' $(MAKEFILE_LIST)
	@echo 'Measure it:'
	@sed -n 's/^\(bench\):.*## /  make \1         /p; s/^\(bench-quick\):.*## /  make \1   /p' $(MAKEFILE_LIST)
	@echo 'Change it:'
	@sed -n 's/^\(check\):.*## /  make \1         /p; s/^\(lint\):.*## /  make \1          /p; s/^\(wheel\):.*## /  make \1         /p; s/^\(clean\):.*## /  make \1         /p' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## set up and train one model with C, Python, R and shell workers together
	@$(BIN)/python examples/digits/demo.py

test: $(VENV)/.test  ## set up and run every everyday test; PLUGML_REQUIRE_ALL=1 fails instead of skipping, JOBS=1 runs one at a time
	@$(PYTEST) -m 'not slow'

test-all: $(VENV)/.test  ## the same and the long ones (300 kills, thousands of seeds)
	@PLUGML_LONG=1 PLUGML_SEEDS=2000 $(PYTEST) -o timeout=3600 -o faulthandler_timeout=0

test-clients: $(VENV)/.test  ## every client in every language: conversations, faults, plugml conform, golden files
	@$(PYTEST) -m 'not slow' tests/conformance

check: $(VENV)/.test  ## under a minute: lint, types, unit, scenarios, 25 simulated seeds
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -q -m 'not slow' tests/tidy tests/unit tests/scenario tests/sim

lint: $(VENV)/.test  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy plugml

sim: $(VENV)/.test  ## simulate clusters: make sim SEEDS=200, or one seed with its trace: make sim SEED=7 SEEDS=1
	@if [ "$(SEEDS)" = 1 ]; then $(BIN)/python -m tests.sim $(SEED) --trace; else $(BIN)/python -m tests.sim --seeds $(SEEDS) --start $(SEED); fi

bench-quick: $(VENV)/.test  ## about a minute: channel, dense steps, start-up; writes bench/last.json
	@$(BIN)/python -m bench --quick

bench: $(VENV)/.test  ## the whole table
	@$(BIN)/python -m bench

wheel: $(VENV)/.test  ## build the wheel into dist/
	@$(BIN)/python -m pip -q wheel --no-deps -w dist .

clean:  ## remove what the targets made (.venv too)
	rm -rf $(VENV) dist build plugml-runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "plugml needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing). Choose one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo 'setting up $(VENV) ...'
	@$(BIN)/python -m pip -q --disable-pip-version-check install -e '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@echo 'setting up $(VENV) ...'
	@$(BIN)/python -m pip -q --disable-pip-version-check install -e '.[test,demo]'
	@touch $@ $(VENV)/.demo
