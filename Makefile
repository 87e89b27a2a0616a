# Two commands for a newcomer: `make demo` and `make test`. Each sets up everything it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
FLOORS := .venv-floors
OUT ?= demo-gallery
# With `CONSTRAINTS=constraints.txt`, the versions that contributors have in common are installed; without, the newest.
INSTALL := -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Several PyTorch processes on few cores slow each other badly unless idle threads sleep.
export OMP_WAIT_POLICY := passive

.PHONY: demo test slow check docs site llms tree registry format smoke package floors constraints release clean

demo: $(VENV)/.demo
	$(BIN)/aha demo --out $(OUT)

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --tb=native

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --tb=native
	$(BIN)/mkdocs build --strict --quiet
	.ci/audit $(BIN)/pip-audit

docs: $(VENV)/.dev
	$(BIN)/mkdocs serve

site: $(VENV)/.dev
	$(BIN)/mkdocs build --strict --quiet

llms:
	$(PYTHON) docs/make_llms.py

# The listing of folders in CONTRIBUTING.md, from their docstrings.
tree:
	$(PYTHON) docs/make_tree.py

# What can be named in a spec, for commands that do not import torch: after a new method, metric or parameter.
registry: $(VENV)/.dev
	$(BIN)/python .ci/registry.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Does it work on this system at all? Known answers and the demo.
smoke: $(VENV)/.demo
	$(BIN)/aha doctor
	$(BIN)/aha demo --out $(OUT)

# Wheel and sdist in dist/, tried in a fresh environment outside the clone.
package: $(VENV)/.dev
	.ci/package $(BIN)/python

# The quick tests with the oldest versions that pyproject.toml accepts. Those still use what others have deprecated.
floors:
	test -x $(FLOORS)/bin/python || $(PYTHON) -m venv $(FLOORS)
	$(PYTHON) .ci/floors.py > $(FLOORS)/constraints.txt
	$(FLOORS)/bin/python -m pip install --quiet --constraint $(FLOORS)/constraints.txt --editable '.[test]'
	OMP_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest -n 2 --tb=native -W default::DeprecationWarning

# What is installed here becomes what contributors have in common; torch chooses its own libraries for GPUs.
constraints: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable | grep -viE '^(cuda|nvidia|triton)' > constraints.txt

# May the tag of this name be published? `make release TAG=v0.1.0`
release:
	$(PYTHON) .ci/release.py $(TAG)

clean:
	rm -rf $(VENV) $(FLOORS) site dist $(OUT)

# One marker per extra, so that a set-up is repeated only when the dependencies change.
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --editable '.[$*]'
	touch $@
