# Two commands for a newcomer: `make demo` and `make test`. Each sets up everything it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= demo-gallery
# Several PyTorch processes on few cores slow each other badly unless idle threads sleep.
export OMP_WAIT_POLICY := passive

.PHONY: demo test slow check docs format clean

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

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) site dist $(OUT)

# One marker per extra, so that a set-up is repeated only when the dependencies change.
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
