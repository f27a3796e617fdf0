# Every target makes .venv and installs what it needs by itself.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: two torch threads in each of two processes are slower than one each.
export OMP_NUM_THREADS := 1
# Compiled modules are kept: each process of the tests would compile them again.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-experiments check bench bench-quick docs format clean

# What the demo needs, and no more; pip says what it fetches.
.venv/core: pyproject.toml constraints.txt
	@echo "Installing autoloss in .venv. PyTorch is the largest part; this takes a few minutes once."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable .
	touch $@

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing autoloss in .venv with everything that tests, documentation and all tasks need."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable ".[dev,docs,vision,ray,adapters,bench,boosting]"
	touch .venv/core $@

# Another seed: make demo SEED=1
SEED ?= 0
# Fewer scenes and a finale of little more than a minute: the usual one takes longer.
FINALE := --set train=1280 --set final.confirm=2 --set final.finalists=2 --set final.finalist_seeds=1 --set final.compare_seeds=4
demo: .venv/core
	@echo "Searching a loss for the border score (BF1) on scenes of handwritten digits: three to four minutes on two cores; it says how long."
	$(BIN)/autoloss search digits-seg --metric bf1 --evaluations 16 --seed $(SEED) $(FINALE)

test: .venv/installed
	$(BIN)/pytest -n 3 --dist worksteal

# Every script of bench/ at its smallest, and the tests that broken variants of the code are caught.
test-experiments: .venv/installed
	$(BIN)/pytest -n 3 --dist worksteal -m experiment

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest tests/test_forbidden.py

# Every published figure again, days on two cores. What ended is not run again, and what was begun goes on: build/bench/ keeps both.
MEASURED := $(foreach script,$(wildcard bench/*/*.py),$(if $(wildcard bench/results/$(basename $(notdir $(script))).json),\
	$(basename $(notdir $(script)))))
RESUMED := ablation audit efficiency lag lossbench pairs transfer
bench: $(MEASURED:%=build/bench/%.done)
	$(BIN)/python docs/results.py

build/bench/%.done: .venv/installed
	mkdir -p $(@D)
	$(BIN)/python $(wildcard bench/*/$*.py) --out bench/results/$*.json $(if $(filter $*,$(RESUMED)),--work build/bench/$*.work)
	touch $@

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
