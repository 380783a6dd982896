# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# `make test-slow` holds what takes longer, `make test-measure` what needs a compiler and torch.
.PHONY: demo test test-slow test-measure lint docs bench bench-million clean

demo: $(VENV)/installed
	$(BIN)/essim sweep scenarios/earlyselect-40k.yaml \
		--out out/earlyselect-40k.csv --html out/earlyselect-40k.html

test: $(VENV)/installed lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --ignore tests/measure

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -q -n 2 -m slow --ignore tests/measure

# Kernels and a small calibration for real: needs a C++ compiler and torch in the venv
# ($(BIN)/pip install torch==2.13.0; any recent version, the CPU build is enough).
test-measure: $(VENV)/installed
	$(BIN)/python -m pytest -q tests/measure

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes the tables and figures of README and docs/ from the data.
docs: $(VENV)/installed
	$(BIN)/python docs/build.py

bench: $(VENV)/installed
	$(BIN)/python -m pytest -q benchmarks --benchmark-disable-gc --benchmark-columns=min,rounds
	$(BIN)/python benchmarks/serving.py

# The shipped million points, into a folder that is made anew.
bench-million: $(VENV)/installed
	rm -rf out/million
	time $(BIN)/essim sweep million --out out/million --jobs 2

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
