# `make run` and `make test` set everything up themselves: all they need is Python 3.11 or later.
PYTHON ?= $(or $(shell for each in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done), python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NPM := tests/npm
NPM_READY := $(NPM)/node_modules/.ready
FASTMCP := $(VENV)/fastmcp
FASTMCP_READY := $(FASTMCP)/.ready
SITE := build/docs

.PHONY: run check test unit fuzz lint docs bench conformance accessibility screenshots clients versions clean

run: $(READY)
	$(BIN)/python manage.py migrate --verbosity 0
	$(BIN)/python manage.py create_demo_data --demo-user
	exec $(BIN)/python manage.py runmcp --transport http

# Format, lint, types, and the tests that start no process: under a minute.
check: $(READY)
	$(MAKE) --no-print-directory --jobs --output-sync lint unit

unit: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not process and not serial and not fuzz' $(ARGS)

# Three tests at once for two CPUs, then those marked `serial` one after another. ARGS=-n0: nothing at once.
test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# Ten times the requests of `make test`, and each time others; the seed is in the line that make prints.
fuzz: $(READY)
	FUZZ_SEED=$(shell date +%s) FUZZ_REQUESTS=200000 FUZZ_CONNECTIONS=10000 $(BIN)/python -m pytest tests/asgi/test_fuzz.py tests/asgi/test_fuzz_wire.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs $(SITE)
	@echo "$(SITE)/index.html"

conformance: $(READY) $(NPM_READY)
	$(BIN)/python -m tests.conformance.run
	$(BIN)/python -m pytest tests/conformance/authorization.py

# The pages of the console and of signing in, looked at by axe-core.
accessibility: $(READY) $(NPM_READY)
	$(BIN)/python -m pytest tests/console/accessible_pages.py tests/oauth/accessible_pages.py $(ARGS)

# The pictures of docs/howto/console.md, from the example project.
screenshots: $(READY)
	$(BIN)/python -m tests.console.screenshots

clients: $(READY) $(NPM_READY) $(FASTMCP_READY)
	$(BIN)/python -m pytest tests/clients/real_clients.py tests/clients/inspector_pages.py tests/clients/signing_in.py $(ARGS)

# pyenv's interpreters stand in folders of their own; what its shims call may not be there.
versions: $(READY)
	PATH="$$(command -v pyenv >/dev/null && printf '%s/bin:' "$$(pyenv root)"/versions/*)$$PATH" $(BIN)/nox $(ARGS)

# ARGS=--quick for a minute's look; see python -m bench --help.
bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) .nox $(NPM)/node_modules build db.sqlite3

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $(READY)

$(NPM_READY): $(NPM)/package.json $(NPM)/package-lock.json $(NPM)/.npmrc
	@command -v npm >/dev/null || { echo 'npm is not installed; it comes with Node.js.' >&2; exit 1; }
	cd $(NPM) && npm ci >/dev/null
	touch $(NPM_READY)

# In an environment of its own: what it needs must not decide what the tests run with.
$(FASTMCP_READY): $(READY) tests/clients/requirements.txt
	$(BIN)/python -m venv $(FASTMCP)
	$(FASTMCP)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.txt
	touch $(FASTMCP_READY)
