# Two commands matter: `make demo` and `make test`. Both work on a bare machine with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINIMAL := .venv-minimal
PIP := -m pip install -q --disable-pip-version-check --retries 10 --timeout 60 -c constraints.txt
# An older pip takes minutes to resolve the extras, so pip comes first.
EXTRAS := torch,hf,polars,eval,ray,docs,dev
# Threads that spin while they wait make small products ten times slower wherever something else runs too.
export OMP_WAIT_POLICY ?= PASSIVE
# Modules are compiled once, not by each of the hundred processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types unit minimal bench slow faults docs gallery house release frontend browser clean

# An environment is kept if its pip works and was made here; one that was begun, moved or copied is made anew.
made = grep -qsF '$(CURDIR)/$(1)/bin/python' $(1)/bin/pip && $(1)/bin/python -m pip --version > /dev/null 2>&1 \
  || $(PYTHON) -m venv --clear $(1)
$(foreach place,$(VENV) $(MINIMAL),$(shell \
  grep -qsxF '$(CURDIR)' $(place)/.installed || rm -f $(place)/.installed))

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call made,$(VENV))
	$(BIN)/python $(PIP) -U 'pip>=25'
	$(BIN)/python $(PIP) torch==2.13.0
	$(BIN)/python $(PIP) -e '.[$(EXTRAS)]'
	echo '$(CURDIR)' > $@

# The torch-free install: what a user gets from plain `pip install orderlens`.
$(MINIMAL)/.installed: pyproject.toml constraints.txt
	$(call made,$(MINIMAL))
	$(MINIMAL)/bin/python $(PIP) -U 'pip>=25'
	$(MINIMAL)/bin/python $(PIP) -e . pytest
	echo '$(CURDIR)' > $@

demo: $(VENV)/.installed
	$(BIN)/python -m orderlens demo --out demo-out
	@echo "orderlens is $(BIN)/orderlens; 'source $(BIN)/activate' puts it on the path"

test: lint types unit minimal

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed
	$(BIN)/mypy

unit: $(VENV)/.installed $(VENV)/.browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -p no:cacheprovider --ignore=tests/minimal

minimal: $(MINIMAL)/.installed
	$(MINIMAL)/bin/python -m pytest -p no:cacheprovider tests/minimal

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_decode.py
	$(BIN)/python benchmarks/bench_smol.py --device cpu --batch 1 --new 32 --clock cpu
	$(BIN)/python benchmarks/bench_rounds.py
	$(BIN)/python benchmarks/bench_host.py --unit 204 --external 2000 --no-network
	$(BIN)/python benchmarks/bench_theory.py
	$(BIN)/python benchmarks/bench_store.py
	$(BIN)/python benchmarks/bench_analysis.py

# What `unit` leaves out because it takes long: whole recipes, kills at every step, simulations of the judge.
slow: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow -p no:cacheprovider

# Kills, hangs, fills and cuts off real workers, drivers, nodes and disks; each line is a fault and its outcome.
faults: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -m 'slow or not slow' -p no:cacheprovider tests/runs

# Builds what report and viewer run in the browser; users need no Node, the built files are committed.
frontend/node_modules/.installed: frontend/package.json frontend/package-lock.json
	cd frontend && npm ci --ignore-scripts --no-audit --no-fund
	touch $@

frontend: frontend/node_modules/.installed
	cd frontend && npm run build && npm test

# What the tests in a real browser need: a Chromium, and axe through npm. Where they cannot be had, those tests say
# so and are skipped; 'make browser' tries again.
browser: $(VENV)/.installed
	rm -f $(VENV)/.browser
	$(MAKE) $(VENV)/.browser

$(VENV)/.browser: | $(VENV)/.installed
	command -v chromium || command -v chromium-browser || command -v google-chrome \
	  || timeout 240 $(BIN)/playwright install chromium || echo "no Chromium: tests in a browser are skipped"
	command -v npm && timeout 120 $(MAKE) frontend/node_modules/.installed || echo "no npm: tests of the front end are skipped"
	touch $@

docs: $(VENV)/.installed
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "the site is in site/: open site/index.html"

# The size of the house: rooms, layers, lines, files entered per verb; JSON=1 prints one JSON object.
house: $(VENV)/.installed
	@$(BIN)/python design/house.py $(if $(JSON),--json)

# docs/gallery.md and its figures from small runs; takes minutes, and is needed only when a figure changes.
gallery: $(VENV)/.installed
	$(BIN)/python recipes/gallery.py

# Wheel and sdist in dist/, checked and tried in clean environments of Python 3.11, 3.12 and 3.13; uploads nothing.
release:
	$(PYTHON) recipes/release.py

clean:
	rm -rf $(VENV) $(MINIMAL) demo-out frontend/node_modules frontend/.test .mypy_cache .ruff_cache .pytest_cache
