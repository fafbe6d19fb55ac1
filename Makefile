# `make demo`, `make test` and `make docs` do everything on a machine that has Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
RAY_STAMP := $(VENV)/.installed-ray
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint slow chaos catalogue docs examples bench clean
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(PIP) -e ".[docs]"
	touch $(DOCS_STAMP)

$(RAY_STAMP): $(STAMP)
	$(PIP) -e ".[ray]"
	touch $(RAY_STAMP)

demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/nasformer run --config digits --out runs/demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2  # from nothing, as in a new clone, in half the time

test: lint $(RAY_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # one thread a worker: two cores, two workers

slow: $(RAY_STAMP)
	$(PIP) s3fs "moto[server]" mlflow wandb submitit  # clients, without which their tests are skipped
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest tests/cli/test_remote.py tests/runs/test_tracking.py

chaos: $(RAY_STAMP)
	$(BIN)/python benchmarks/chaos.py --kills 50  # workers, nodes and commands; about 25 minutes on two cores

catalogue: $(STAMP)  # the spaces and proxies that `nasformer spaces` and `nasformer proxies` list without torch
	$(BIN)/python -c "from nasformer.models.registry import write_catalogue; write_catalogue()"
	$(BIN)/python -c "from nasformer.proxies.registry import write_catalogue; write_catalogue()"

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # into build/site

examples: $(STAMP)
	$(BIN)/python examples/execute.py examples/digits_search.ipynb  # computes its outputs anew
	folder=$$(mktemp -d) && root=$$PWD && cd $$folder && $$root/$(BIN)/python $$root/tests/pages.py --whole && rm -r $$folder

bench: $(STAMP)
	$(BIN)/python benchmarks/supernet_speed.py --device cpu --img-size 224 --batch-size 8 --steps 8 --turns 8
	$(BIN)/python benchmarks/cost_speed.py
	$(BIN)/python benchmarks/dss_speed.py

clean:
	rm -rf $(VENV) runs build
