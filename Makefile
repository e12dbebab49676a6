# Each target sets itself up: the first run makes .venv and installs what the lock says.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.PHONY: serve check test nightly bench lock clean

serve: $(VENV)/.runtime  ## run the gateway over HTTP on loopback; ARGS="--port 9000" adds to it
	$(BIN)/toolgate serve --transport http $(ARGS)

check: $(VENV)/.development  ## the inner loop: style, types, the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	TOOLGATE_QUICK=1 PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/compiled \
	  $(BIN)/pytest -n auto --dist=worksteal -o tmp_path_retention_policy=failed -m "not slow" $(ARGS)

test: $(VENV)/.development  ## everything, as CI runs it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist=worksteal $(ARGS)

nightly: $(VENV)/.development  ## every test with larger numbers, and clients that take long to install; needs npm
	tests/journeys/node/install
	tests/journeys/servers/wild/install
	tests/journeys/clients_matrix/install nightly
	TOOLGATE_NIGHTLY=1 TOOLGATE_REQUIRE_NODE=1 $(BIN)/pytest -n auto --dist=worksteal $(ARGS)

bench: $(VENV)/.development  ## every benchmark, each against its anchor in the same run
	for benchmark in benchmarks/[!_]*.py; do $(BIN)/python -m benchmarks.$$(basename $$benchmark .py) || exit 1; done

lock: $(VENV)/.development  ## renew requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-header \
	  --no-annotate --no-emit-index-url --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Toolgate needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml requirements.lock
	$(PIP) --editable .
	@touch $@

$(VENV)/.development: $(VENV)/bin/python pyproject.toml requirements.lock
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime
