# Every target sets up what it needs: a virtual environment in .venv, dependencies, the tiny model.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: qualify test lint types walls unit e2e swarm bench clean

# The main job on the embedded default: child process, tiny hybrid model, CPU, quick sizes; the receipt is verified.
qualify: $(READY)
	$(BIN)/ninfer qualify tiny-cpu --host process --receipts-dir runs/receipts

# Everything that CI checks, short of real containers (see e2e).
test: lint types walls unit

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

walls: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile tests/unit tests/engine tests/lifecycle tests/releases
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile tests/reports # apart: the browser's client keeps a loop running

# Real containers: needs a Docker daemon; scripts/docker_up.sh starts one where none answers.
e2e: $(READY)
	$(BIN)/pytest tests/e2e

# Of these, the swarm of three nodes alone: daemons in network namespaces, an update rolled back, a node drained.
swarm: $(READY)
	$(BIN)/pytest tests/e2e/test_swarm_three_nodes.py

bench: $(READY)
	$(BIN)/python -m benchmarks.run $(BENCH)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[engine,dashboard,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs models
