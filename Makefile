# `make demo` and `make test` do everything on a machine that has Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench slow clean
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/nasformer run --config recipes/digits.yaml --out runs/demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # one thread a worker: two cores, two workers

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

bench: $(STAMP)
	$(BIN)/python benchmarks/supernet_speed.py --device cpu --img-size 224 --batch-size 8 --steps 8
	$(BIN)/python benchmarks/cost_speed.py
	$(BIN)/python benchmarks/dss_speed.py

clean:
	rm -rf $(VENV) runs
