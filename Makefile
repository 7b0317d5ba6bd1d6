# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test site gallery torture lint lint-js
demo: .venv/ready
	@$(BIN)/regard demo

test: .venv/ready lint
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadscope

# All documents as pages for a browser, with a reference of every command, setting and file.
site: .venv/ready
	@$(BIN)/python -m docs.site build/site

# Trains five small models, which takes some minutes; `make site` then has them, each as one file.
gallery: .venv/ready
	@$(BIN)/python -m docs.site.gallery

# Attacks by the thousand (docs/reliability.md): hours, but a run that was ended goes on. SCALE=0.01 takes minutes.
SCALE ?= 1
torture: .venv/ready
	$(BIN)/python -m torture --scale $(SCALE)

lint: .venv/ready lint-js
	$(BIN)/ruff check .
	$(BIN)/mypy

# The page's JavaScript, where there is a node that is new enough for eslint, and a registry to install from.
lint-js:
	@if ! command -v npm >/dev/null || ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then \
		echo "JavaScript is not checked: this needs node 20 or newer, and npm"; \
	elif [ ! node_modules/ready -nt package-lock.json ] && ! { \
		npm ci --silent --fetch-retries=1 --fetch-timeout=20000 && touch node_modules/ready; }; then \
		echo "JavaScript is not checked: npm ci could not install eslint and typescript from a registry"; \
	else npm run --silent lint; fi

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
