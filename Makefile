# `make demo` and `make test` need Python 3.11 and make, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# No xdist on one core; otherwise one worker a core, with one BLAS thread each.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: setup demo docs figures image package pins test test-slow soak lint bench bench-compare clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Versions and hashes for deployments, of the machine that this runs on.
pins: setup
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report .venv/report.json -c constraints.txt '.[mesh,dp,fast]'
	$(BIN)/python packaging/pins.py .venv/report.json packaging/requirements.txt

demo: setup
	$(BIN)/dekrr demo

# The site: every page, example and notebook is run; a warning is an error.
docs: .venv/.docs-installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

.venv/.docs-installed: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# The figures of the pages, from benchmarks/results.
figures: setup
	$(BIN)/python docs/figures.py

# The wheel and the source archive, each tried in an environment of its own.
package: setup
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python tests/try_package.py dist

# The image of a site, from packaging/Containerfile, without a registry: BASE names a base of your own.
image: setup
	PYTHON=$(BIN)/python sh packaging/image.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not slow"

test-slow: setup
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m slow --timeout=3600

SEEDS ?= 5000
soak: setup
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/soak.py $(SEEDS) --workers $(WORKERS)

bench: setup
	$(BIN)/dekrr bench --out benchmarks/results/speed.json
	$(BIN)/python benchmarks/floors.py

bench-compare: setup
	$(BIN)/dekrr bench --compare benchmarks/results/speed.json

clean:
	rm -rf .venv demo
