# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/installed
	$(BIN)/essim sweep scenarios/earlyselect-40k.yaml \
		--out out/earlyselect-40k.csv --html out/earlyselect-40k.html

test: $(VENV)/installed lint
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/engines.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "essim needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)

# requirements.lock holds exact versions and hashes of everything, tests included.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml requirements.lock
	$(BIN)/python -m pip install -q --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) out dist
