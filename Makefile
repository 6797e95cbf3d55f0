# Needs only make and Python 3.11 or later; everything else goes into $(VENV).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UPSTREAM ?= .upstream
OF_THEIR_OWN := $(patsubst tests/upstream/requirements-%.txt,%,$(wildcard tests/upstream/requirements-*.txt))
PYTEST := $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help plan test test-slow test-upstream test-executors test-browser parity fuzz planted-faults kill-test lint format types figures study-table docs check \
	clean search-table memory-table single-gpu fsdp2 cp-overlap document-degrees closed-loop closed-loop-quick tuned-plans ranking

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Editable, so that what runs is always what stands in the checkout.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install -q -e .
	@touch $@

# torch first and alone: a later package could pull in another build of it.
$(VENV)/.test-installed: pyproject.toml | $(BIN)/python
	$(PIP) install -q 'torch>=2.6,<2.14'
	$(PIP) install -q -e '.[test]'
	@touch $@ $(VENV)/.installed

plan: $(VENV)/.installed  ## plan Llama-3.1-8B on 2 DGX H100: plan.json, and in launch/ the files that start it
	$(BIN)/python -m meshwright plan --model llama-3.1-8b --cluster dgx-h100:2 --global-batch 512 --seq-len 8192 -o plan.json --force
	$(BIN)/python -m meshwright emit plan.json --launcher slurm -d launch --force

test: $(VENV)/.test-installed  ## all tests but the slow ones, and a table of emitted and imported files (20 min)
	$(PYTEST) -m 'not slow'

test-slow: $(VENV)/.test-installed  ## the slow ones: the shipped fit made anew, frameworks fetched to read what is emitted (42 min)
	$(PYTEST) -m slow

# The frameworks, in an environment of their own (git-ignored; 2.7 GB), and one for each that needs other releases of what
# they share (1 to 2 GB each). Megatron's argument parser and Bridge's recipes are in no wheel: give checkouts by
# MEGATRON_PATH, MEGATRON_DEV_PATH (branch dev), MEGATRON_BRIDGE_PATH (with its submodule), NANOTRON_PATH, MAXTEXT_PATH
# and NEMO_RL_PATH (both by Python 3.12), or their rows say `not run`.
$(UPSTREAM)/.installed: tests/upstream/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install -q 'torch==2.13.*'
	$(@D)/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

$(UPSTREAM)/of/%/.installed: tests/upstream/requirements-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install -q 'torch==2.13.*'
	$(@D)/bin/python -m pip --disable-pip-version-check install -q -r $<
	sed -n 's/^# alone: //p' $< | xargs -r $(@D)/bin/python -m pip --disable-pip-version-check install -q --no-deps
	sed -n 's/^# without: //p' $< | xargs -r $(@D)/bin/python -m pip --disable-pip-version-check uninstall -q -y
	sed -n 's/^# also named: //p' $< | while read name version; do \
	  folder=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/$$name-$$version.dist-info; \
	  mkdir -p "$$folder" && printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' $$name $$version > "$$folder/METADATA"; done
	@touch $@

test-upstream: $(VENV)/.test-installed $(UPSTREAM)/.installed $(OF_THEIR_OWN:%=$(UPSTREAM)/of/%/.installed)  ## emitted files against the frameworks themselves
	MESHWRIGHT_UPSTREAM=$(UPSTREAM) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s tests/upstream

test-executors: $(VENV)/.test-installed  ## searches on a local Dask and a local Ray cluster (Ray: 80 MB to fetch)
	$(PIP) install -q -e '.[cluster]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/planner/search/test_executors.py

test-browser: $(VENV)/.test-installed  ## pages in headless Chromium (4 min; skipped where `apt-get install chromium` was not)
	$(PIP) install -q -e '.[browser]'
	MESHWRIGHT_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s tests/browser

parity: $(VENV)/.test-installed  ## every layout of the runtime against one process (20 min)
	OMP_NUM_THREADS=1 $(PYTEST) tests/runtime/rehearsal/parity_all.py

planted-faults: $(VENV)/.test-installed  ## plant 41 mistakes in the runtime, print which check sees each (1 min)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 0 -s --tb=line tests/runtime/planted_all.py

INPUTS ?= 10000
PROCESSES ?= 500
SEED ?= 0
fuzz: $(VENV)/.test-installed  ## drawn inputs over all commands: none may break it (25 min; INPUTS=, PROCESSES=, SEED=)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.fuzz_all --inputs $(INPUTS) --processes $(PROCESSES) --seed $(SEED)

kill-test: $(VENV)/.test-installed  ## faults of a run as a table: SIGKILL, SIGTERM, full disks, missing nodes (17 min)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s tests/runtime/checkpoint/kill_all.py

lint: $(VENV)/.test-installed  ## ruff, check only
	$(BIN)/python -m ruff check .

format: $(VENV)/.test-installed  ## let ruff fix what it can
	$(BIN)/python -m ruff check --fix .

types: $(VENV)/.test-installed  ## mypy --strict on sources and tests
	$(BIN)/python tools/typecheck.py

figures: $(VENV)/.test-installed  ## measure the speed figures into benchmarks/figures.json
	$(BIN)/python benchmarks/figures.py

search-table: $(VENV)/.test-installed  ## print what the search has to reach, and what it takes here
	$(BIN)/python benchmarks/search_table.py

memory-table: $(VENV)/.test-installed  ## train 40 random stages on the CPU, predicted memory beside measured (10 to 30 min)
	$(BIN)/python benchmarks/memory_table.py

single-gpu: $(VENV)/.test-installed  ## train four models on one GPU, predicted beside measured
	$(BIN)/python benchmarks/single_gpu.py -o benchmarks/single_gpu

fsdp2: $(VENV)/.test-installed  ## steps of the runtime beside those of FSDP2, eager and compiled, 4 ranks on CPUs (8 min; GBIT= as root)
	$(BIN)/python benchmarks/fsdp2.py $(if $(GBIT),--gbit $(GBIT)) -o benchmarks/fsdp2.json

cp-overlap: $(VENV)/.test-installed  ## what the runtime hides of the exchange of keys and values, 4 ranks on CPUs (2 min; GBIT= as root)
	$(BIN)/python benchmarks/cp_overlap.py $(if $(GBIT),--gbit $(GBIT))

document-degrees: $(VENV)/.test-installed  ## documents of mixed lengths: published ratios, Megatron's rule, gaps and seconds of batches (2 min; ROWS= for the ledger)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/document_degrees.py $(if $(ROWS),--rows $(ROWS))

closed-loop: $(VENV)/.test-installed  ## emulated clusters (root): profile, plan, train; predicted beside measured (67 to 107 min)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/closed_loop.py -o benchmarks/closed_loop_results

closed-loop-quick: $(VENV)/.test-installed  ## one of these clusters, 8 layouts (6 min); its results are printed alone
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/closed_loop.py --quick

PLANS ?= tuned_plans.yaml
tuned-plans: $(VENV)/.test-installed  ## judge tuned plans (PLANS=FILE) into benchmarks/tuned_plans.json (5 min)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/tuned_plans.py $(PLANS)

ranking: $(VENV)/.test-installed  ## the order of a plan against 2,000 simulated layouts of each of 14 requests, into benchmarks/ranking.json (12 min)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ranking.py --layouts 1600 -o benchmarks/ranking.json

study-table: $(VENV)/.test-installed  ## seconds of sweeps, re-pricing and the studies of examples/studies, size of a report
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/study_table.py

docs: $(VENV)/.test-installed  ## write docs/reference/cli.md from --help
	$(BIN)/python tools/gen_cli_reference.py

check: lint types test test-slow  ## what has to pass before a change goes in

clean:  ## remove what the gates leave behind (not $(VENV))
	rm -rf build dist .typecheck .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path '*/$(VENV)/*' -not -path './$(UPSTREAM)/*' -prune -exec rm -rf {} +
