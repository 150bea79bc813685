# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 1000

.PHONY: setup demo test check format proto drills bench fuzz sim clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@echo "Setting up $(VENV): about a minute the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[bench]'
	@touch $@

demo: setup
	$(BIN)/gir demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py tests/unit/test_generated.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup
	$(BIN)/python -m gir.wire.regenerate

drills: setup
	$(BIN)/gir-chaos run --all --scale 0.1

bench: $(VENV)/.bench-ready
	$(BIN)/python -m tests.perf.overhead
	$(BIN)/python -m tests.perf.routing
	$(BIN)/python -m tests.perf.placement
	$(BIN)/python -m tests.perf.micro

fuzz: setup
	$(BIN)/python -m pytest -m 'full or not full' tests/fuzz

sim: setup
	$(BIN)/gir-chaos sim --seeds 1..$(SEEDS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
