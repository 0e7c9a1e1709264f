# `make up` serves the demo model on two Ray nodes of this machine; `make test` runs every check; `make down` stops.
# Needs git, make and Python 3.11 (PYTHON=… names another); everything else goes into .venv.
# ARGS is passed on: make up ARGS="MODEL --pp 2", make test ARGS="-k lab -x".
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help up down status install test lint lock

help:
	@grep '^#' Makefile | sed 's/^# //'

install:
	@scripts/install up

up: install
	@$(BIN)/longspan up $(ARGS)

# These two install nothing where Longspan is installed: a deployment may be running out of that environment.
down status: $(BIN)/longspan
	@$(BIN)/longspan $@ $(ARGS)

$(BIN)/longspan:
	@scripts/install up

lint:
	@scripts/install test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# The test runner's closing line is the last thing printed. Two workers: engines, and all the rest (tests/lanes.py).
test: lint
	@$(BIN)/python -m pytest --timeout 600 -n 2 --no-loadscope-reorder $(ARGS)

lock:
	@scripts/install test
	@$(BIN)/python scripts/lock.py write
