# Two commands for a machine with nothing but Python (3.11 or newer) and make:
#   make demo   sets up, runs the Gaussian study in 2-D as published, says where its report is
#   make test   sets up, runs every check: lint, format, types, tests, benchmarks in their quick form
# And for the figures in README.md and docs/performance.md, on an idle machine, about twenty minutes:
#   make bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Several workers with one thread each are faster than one worker with several here, and rounding
# in tests does not depend on the number of cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test setup lint types tests fuzz bench bench-quick clean
BENCHMARKS := trials scaling overheads ellipsoids representation audit building

demo: $(READY)
	$(BIN)/mahalens run gaussian --dim 2 --out runs/demo --force

# The tests come last, so that what they say of a missing browser is the last thing seen.
test: lint types bench-quick tests

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

# Some minutes per hundred: every command line and data file must end soon, without a traceback.
fuzz: $(READY)
	FUZZ_LINES=2000 FUZZ_FILES=900 $(TEST_ENV) $(BIN)/python -m pytest -q -s tests/fuzz

bench: $(READY)
	mkdir -p docs/benchmarks
	$(BIN)/python benchmarks/trials.py --json docs/benchmarks/trials.json
	$(BIN)/python benchmarks/scaling.py --json docs/benchmarks/scaling.json --figure docs/images/scaling.png
	$(BIN)/python benchmarks/overheads.py --json docs/benchmarks/overheads.json
	$(BIN)/python benchmarks/ellipsoids.py --json docs/benchmarks/ellipsoids.json
	$(BIN)/python benchmarks/representation.py --json docs/benchmarks/representation.json
	$(BIN)/python benchmarks/audit.py --json docs/benchmarks/audit.json
	$(BIN)/python benchmarks/building.py --json docs/benchmarks/building.json
	$(BIN)/python docs/benchmarks.py

bench-quick: $(READY)
	@for name in $(BENCHMARKS); do \
		echo "benchmarks/$$name.py --quick"; \
		$(TEST_ENV) $(BIN)/python benchmarks/$$name.py --quick > .bench.log 2>&1 \
			|| { cat .bench.log; rm -f .bench.log; exit 1; }; \
	done; rm -f .bench.log

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
