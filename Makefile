# Every target makes .venv and installs what it needs by itself.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: two torch threads in each of two processes are slower than one each.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check bench-quick docs format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,docs,vision,ray,adapters]"
	touch $@

# Another seed: make demo SEED=1
SEED ?= 0
# A finale of about a minute: the usual one takes several.
FINALE := --set final.confirm=4 --set final.finalists=2 --set final.compare=1 --set final.compare_seeds=5
demo: .venv/installed
	$(BIN)/autoloss search digits-seg --metric miou --evaluations 30 --seed $(SEED) $(FINALE)

test: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest tests/test_forbidden.py

# Every script under bench/ with --quick; its figures beside those of docs/results.md. At most 15 minutes.
bench-quick: .venv/installed
	$(BIN)/python bench/quick.py --out build/bench-quick.md

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info
