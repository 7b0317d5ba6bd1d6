# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# the built-in stories are short: held back strongly, the model learns their words rather than their order
DEMO := --set model.dropout=0.1 --set train.weight_decay=2 --set train.lr=6e-3 --set train.schedule=wsd

.PHONY: demo test lint
demo: .venv/ready
	@run=$$($(BIN)/regard train write --steps 700 $(DEMO)) && \
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
