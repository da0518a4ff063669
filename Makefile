# Development in two commands: `make run` trains CartPole through the service, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-proto

.PHONY: run test lint format proto bench clean

run: $(VENV)/.installed  ## Train CartPole-v1 through a server of its own and show the result.
	$(BIN)/replay-train --env CartPole-v1 $(ARGS)

test: $(VENV)/.installed  ## All tests, with coverage.
	$(BIN)/python scripts/run_tests.py $(ARGS)

lint: $(VENV)/.installed $(PROTO_VENV)/.installed  ## Style, types, contract, and that generated code is current.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint proto
	$(PROTO_VENV)/bin/python scripts/generate_proto.py --check

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(PROTO_VENV)/.installed  ## Regenerate proto/replay_proto/v1 from proto/replay/v1.
	$(PROTO_VENV)/bin/python scripts/generate_proto.py

bench: $(VENV)/.installed  ## Measure the figures in docs/benchmarks.md.
	$(BIN)/python -m benchmarks $(ARGS)

# An environment is made in one go: a stamp is written only once everything is in it.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[server,cli,agent]' --group dev
	touch $@

$(PROTO_VENV)/.installed: scripts/proto-requirements.txt
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install --quiet --requirement scripts/proto-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(PROTO_VENV)
