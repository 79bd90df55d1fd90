# Commands for a machine with nothing but Python (3.11 or newer) and make:
#   make demo      sets up, runs the Gaussian study in 2-D as published, says where its report is
#   make test      sets up, runs lint, types, the benchmarks in their quick form and the fast tests;
#                  about five minutes on two idle cores
#   make slow      the tests marked slow; CI runs them after make test
#   make package   builds the package, installs it in an empty environment and tries it there
#   make docs      the documentation site, into docs/_build/html; warnings are errors
#   make coverage  all tests with line and branch coverage, printed per room
#   make fuzz      thousands of random command lines and data files, about half an hour
#   make bench     the figures in docs/develop/benchmarks.md and docs/develop/performance.md, on an idle machine,
#                  about twenty minutes
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Several workers with one thread each are faster than one worker with several here, and rounding
# in tests does not depend on the number of cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -q -n auto --dist worksteal

.PHONY: demo test setup lint types tests slow package coverage fuzz bench bench-quick clean docs
BENCHMARKS := trials scaling overheads ellipsoids representation audit building detect

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
	$(PYTEST) -m "not slow" --doctest-modules mahalens tests

slow: $(READY)
	$(PYTEST) -m slow tests

# What it downloads stays in pip's cache.
package: $(READY)
	$(TEST_ENV) $(BIN)/python tests/check_package.py

# The generated pages go with the site, so that none outlives its room or its example.
docs: $(READY)
	rm -rf docs/_build docs/_gallery docs/_notebooks docs/reference/api
	$(TEST_ENV) $(BIN)/python -m sphinx -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Settings, also for the processes that tests start, are in pyproject.toml.
coverage: $(READY)
	$(BIN)/coverage erase
	$(TEST_ENV) $(BIN)/coverage run -m pytest -q -n auto --dist worksteal --doctest-modules mahalens tests
	$(BIN)/coverage combine --quiet
	$(BIN)/python tests/coverage_by_room.py

# Some minutes per hundred: every command line and data file must end soon, without a traceback.
fuzz: $(READY)
	FUZZ_LINES=2000 FUZZ_FILES=900 $(TEST_ENV) $(BIN)/python -m pytest -q -s -m slow tests/fuzz

bench: $(READY)
	mkdir -p docs/benchmarks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt jax
	@for name in $(BENCHMARKS); do \
		case $$name in scaling) figure="--figure docs/images/scaling.png";; *) figure="";; esac; \
		$(BIN)/python benchmarks/$$name.py --json docs/benchmarks/$$name.json $$figure || exit 1; \
	done

# In one process: loading torch and scikit-learn takes longer than any of them.
bench-quick: $(READY)
	$(TEST_ENV) $(BIN)/python benchmarks/quick.py $(BENCHMARKS)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* runs
