# `make demo` and `make test` set up everything they need in .venv; only Python 3.11 has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The newest Python for `make test-versions`: on the PATH, or installed by pyenv.
NEWEST_PYTHON ?= $(shell for v in 3.14 3.13 3.12 3.11; do for p in python$$v \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$v.*/bin/python; do \
	"$$p" --version >/dev/null 2>&1 && command -v "$$p" && exit; done; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
# every worker and every subprocess of a test would otherwise compile all of JAX's Python again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit test-slow test-contract test-devices test-versions \
	test-oldest test-newest test-tracking test-privacy test-secure test-ray test-flare test-models test-natural test-benchopt docs bench bench-remote benchmark benchmark-quick clean

demo: $(DEMO)
	$(BIN)/rookery demo

test: lint
	$(MAKE) --no-print-directory --jobs=2 types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# files that have not changed since they were found right are not checked again
CHECKED := $(shell find rookery tests benchmarks examples -name '*.py')

types: $(VENV)/.types

$(VENV)/.types: $(READY) pyproject.toml $(CHECKED)
	$(BIN)/basedpyright
	@touch $@

# more workers than two cores: some tests wait for clients that answer late
WORKERS ?= 4

unit: $(READY)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=40 -m "not slow" rookery tests

# limits that take many rounds, statistics over many seeds, comparisons of whole runs
test-slow: $(READY)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=40 -m slow rookery tests

# every variant of every algorithm on all engines; `make test` has one variant of each, few on Remote
test-contract: $(READY)
	ROOKERY_CONTRACT=all $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/contract/test_engines_agree.py

# every variant of every algorithm on one, two and four devices of this processor; programs for others
test-devices: $(READY)
	ROOKERY_CONTRACT=all $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/contract/test_on_devices.py tests/engines/test_devices.py

# a few tests of every layer with the oldest declared versions on Python 3.11, and with the newest
# versions of everything on the newest Python
VERSIONS = tests/test_import_is_quiet.py tests/test_public_api.py tests/test_config.py tests/engines \
	tests/clients/test_population.py tests/problem/test_construction.py tests/program/test_federation.py \
	tests/runner/test_checkpoint.py tests/runner/test_sweep.py tests/remote/test_wire.py \
	tests/remote/test_batching.py
FIVE = FedNest or FedMBO or FedMSA or AFBO or ComFedL

test-versions: test-oldest test-newest

test-oldest test-newest: test-%: $(VENV)-%/.ready
	$(VENV)-$*/bin/python -m pytest -n 2 --dist worksteal -m "not slow" $(VERSIONS)
	$(VENV)-$*/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -k "$(FIVE)" \
		tests/contract/test_engines_agree.py

# the trackers and the sampler Optuna with the real packages, which `make test` does without
test-tracking: $(VENV)-tracking/.ready
	$(VENV)-tracking/bin/pytest -rs tests/tracking rookery/tracking
	$(VENV)-tracking/bin/pytest -rs tests/runner/test_tune.py -k optuna

# the epsilon of private runs, compared with dp-accounting's own
test-privacy: $(VENV)-privacy/.ready
	$(VENV)-privacy/bin/pytest -rs tests/runner/test_accountant.py tests/runner/test_row_accountant.py \
		tests/program/test_privacy.py tests/program/test_row_privacy.py

# secure aggregation, with the real primitives
test-secure: $(VENV)-secure/.ready
	$(VENV)-secure/bin/pytest -rs tests/remote/test_fixed_point.py tests/remote/test_secure.py

# clients in the processes of a local Ray cluster; some processes are killed
test-ray: $(VENV)-ray/.ready
	$(VENV)-ray/bin/pytest -rs tests/remote/test_ray.py rookery/remote/transports/ray

# NVIDIA FLARE: its simulator, and three parties with certificates on this machine, which refuse
# foreign code. A few minutes; ROOKERY_FLARE=all adds FedMSA.
test-flare: $(VENV)-flare/.ready
	$(VENV)-flare/bin/pytest -rs tests/remote/test_flare.py

# PyTorch, Flax and Equinox modules, and dataframes, with the real packages. The environment takes 6 GB.
test-models: $(VENV)-models/.ready
	$(VENV)-models/bin/pytest -rs tests/test_models_adapters.py tests/clients/test_table.py
	$(VENV)-models/bin/pytest -rs rookery/models  # examples as a user runs them: JAX's own rules of ranks
	$(VENV)-models/bin/pytest -rs tests/test_examples.py -k "torch or nnx"

# data sets with natural clients inside packages, one of which has many dependencies
test-natural: $(VENV)-natural/.ready
	$(VENV)-natural/bin/pytest -rs tests/clients/test_natural.py tests/tasks/test_task_natural.py

# SOBA, StocBiO and F2SA as solvers of benchopt's bilevel benchmark, run by benchopt
test-benchopt: $(VENV)-benchopt/.ready
	$(VENV)-benchopt/bin/pytest -rs tests/test_benchopt_solvers.py

# the site in docs/_build/html: every page's code is run, and a warning is an error. What ran before
# and has not changed is kept in .cache and docs/gallery.
docs: $(VENV)-docs/.ready
	$(VENV)-docs/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The pages: docs/_build/html/index.html"

# all benchmarks, for a quiet hour; BENCH="--only NAME" measures some of them. A peer that cannot be
# installed is reported, and the others are measured.
PEERS = fedjax pfl flower

bench: $(READY)
	-$(MAKE) --keep-going $(PEERS:%=$(VENV)-bench-%/.ready) $(VENV)-ray/.ready
	$(BIN)/python benchmarks/run_all.py $(BENCH)

bench-remote: $(VENV)-ray/.ready $(VENV)-flare/.ready
	$(VENV)-ray/bin/python benchmarks/remote_exchange.py
	$(VENV)-flare/bin/python benchmarks/flare_exchange.py

# every algorithm on every task: it adds to the committed results what they lack, for a night or
# several; BENCHMARK="--minutes 60" or BENCHMARK="--algorithms SOBA" measures a part
BENCHMARKED = experiments/benchmark

benchmark: $(READY)
	$(BIN)/python -m experiments.benchmark run $(BENCHMARKED)/results.jsonl $(BENCHMARK)
	$(BIN)/python -m experiments.benchmark page $(BENCHMARKED)/results.jsonl $(BENCHMARKED)/index.html

# two algorithms of every form of every task, on digits, with few exchanges: minutes
benchmark-quick: $(READY)
	mkdir -p runs/benchmark-quick
	$(BIN)/python -m experiments.benchmark run runs/benchmark-quick/results.jsonl --quick
	$(BIN)/python -m experiments.benchmark page runs/benchmark-quick/results.jsonl runs/benchmark-quick/index.html
	@echo "The page: runs/benchmark-quick/index.html"

# what the demo needs and no more; the tests add their tools to the same environment
$(DEMO): requirements-demo.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements-demo.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(READY): $(DEMO) requirements.txt
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.txt
	touch $@

$(VENV)-newest/.ready: pyproject.toml
	$(NEWEST_PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --editable .[dev,digits]
	touch $@

$(VENV)-oldest/.ready: requirements-oldest.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet -r requirements-oldest.txt
	$(VENV)-oldest/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)-bench-%/.ready: requirements-bench-%.txt
	$(PYTHON) -m venv $(VENV)-bench-$*
	$(VENV)-bench-$*/bin/python -m pip install --no-compile -r $< > $(VENV)-bench-$*.log 2>&1
	touch $@

# packages that cannot be installed together have an environment each
$(VENV)-%/.ready: requirements-%.txt requirements.txt requirements-demo.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet -r requirements-$*.txt
	$(VENV)-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* .cache runs docs/_build docs/_examples docs/gallery docs/reference docs/papers/experiments docs/jupyter_execute
