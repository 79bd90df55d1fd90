# Two commands for a machine with nothing but Python (3.11 or newer) and make:
#   make demo   sets up, runs the Gaussian study in 2-D as published, says where its report is
#   make test   sets up, runs every check: lint, format, types, tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Several workers with one thread each are faster than one worker with several here, and rounding
# in tests does not depend on the number of cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test setup lint types tests clean

demo: $(READY)
	$(BIN)/mahalens run gaussian --dim 2 --out runs/demo --force

test: lint types tests

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mahalens needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest -q -n auto --doctest-modules mahalens tests

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
