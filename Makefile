# `make demo` and `make test` set up everything they need in .venv, from Python 3.11 alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types unit test-slow test-contract test-tracking test-ray test-flare bench bench-remote clean

demo: $(READY)
	$(BIN)/rookery demo

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

unit: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal --durations=40 -m "not slow" rookery tests

# limits that take many rounds, and whatever else is slow
test-slow: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m slow rookery tests

# all engines with every variant of every algorithm; `make test` has one of each, and few by messages
test-contract: $(READY)
	ROOKERY_CONTRACT=all $(BIN)/pytest -n 2 --dist worksteal tests/contract/test_engines_agree.py

# the trackers with the real packages, which `make test` does without
test-tracking: $(VENV)-tracking/.ready
	$(VENV)-tracking/bin/pytest -rs tests/tracking rookery/tracking

# clients in processes of a local Ray cluster, some of which are killed
test-ray: $(VENV)-ray/.ready
	$(VENV)-ray/bin/pytest -rs tests/remote/test_ray.py

# NVIDIA FLARE: its simulator, and three parties with certificates on this machine. About three
# minutes; ROOKERY_FLARE=all adds FedMSA.
test-flare: $(VENV)-flare/.ready
	$(VENV)-flare/bin/pytest -rs tests/remote/test_flare.py

bench: $(READY)
	$(BIN)/python benchmarks/fednest_round.py
	$(BIN)/python benchmarks/maml_step.py
	$(BIN)/python benchmarks/server_step.py

bench-remote: $(VENV)-ray/.ready $(VENV)-flare/.ready
	$(VENV)-ray/bin/python benchmarks/remote_exchange.py
	$(VENV)-flare/bin/python benchmarks/flare_exchange.py

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# packages that cannot live together have an environment each
$(VENV)-%/.ready: requirements-%.txt requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet -r requirements-$*.txt
	$(VENV)-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-tracking $(VENV)-ray $(VENV)-flare runs
