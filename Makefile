# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint
demo: .venv/ready
	@$(BIN)/regard demo

test: .venv/ready lint
	$(BIN)/python -m pytest --numprocesses=auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
