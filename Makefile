# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint
demo: .venv/ready
	run=$$($(BIN)/regard train write --steps 500 --set model.dropout=0.2 --set train.evaluate=100) && \
	printf '\nThe old lighthouse keeper' && \
	$(BIN)/regard ask $$run "The old lighthouse keeper" --temperature 0.6 --max-new-tokens 300 --seed 1 && \
	printf '\nTry: .venv/bin/regard ask %s "The fox"\n' $$run

test: .venv/ready lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
