# One command each. Everything happens in .venv, which is made on first use; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Reference data and golden cases, where they stand beside the checkout; a user's machine has neither and needs none.
ifneq ($(wildcard ../shared/data),)
export FEDPEER_DATA ?= $(abspath ../shared/data)
endif
ifneq ($(wildcard ../shared/golden),)
export FEDPEER_GOLDEN ?= $(abspath ../shared/golden)
endif
# Workers are processes: threads of the linear algebra would only be in each other's way.
export OMP_NUM_THREADS ?= 1
# Without compiled files each worker rewrites every assertion, and each process that a test starts compiles fedpeer anew.
unexport PYTHONDONTWRITEBYTECODE

# Whole files to each of three workers, in the order of tests/conftest.py: those with slow tests first. Three on two cores:
# nearly a third of a slow test's time is waiting for programs.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
# Tests of the soak take minutes; one that takes an hour hangs.
LONG := --timeout=3600
# What measures real processes by the clock: nothing else runs beside it.
ALONE := $(addprefix tests/,benchmarks cli net sims/processes sims/ray)
# What `make quick` tests: everything that opens no socket, starts no process and reads no data.
CORE := $(addprefix tests/,algorithms config peer/wire peer/state peer/consensus peer/node gossip networks slicing topology)

.PHONY: help install simulate check format quick test soak soak-hosts soak-faults bench site site-version gpu golden clean
help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,parquet,images,watch,discovery,onnx,privacy,ray]'
	@touch $@

install: $(READY)  ## make .venv and install fedpeer in it

simulate: $(READY)  ## the main job: sixteen peers learn together
	$(BIN)/fedpeer simulate --peers 16

check: $(READY)  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks
	$(BIN)/lint-imports

format: $(READY)  ## rewrite the code in its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

quick: $(READY)  ## the tests of the pure core, in under a minute
	$(BIN)/python -m pytest $(WORKERS) --hypothesis-profile=quick -m "not slow and not gpu and not soak" $(CORE)

test: $(READY)   ## all tests
	$(BIN)/python -m pytest $(WORKERS) -m "not gpu and not soak"

soak: $(READY)   ## faults over a thousand seeds, a million fuzzed messages, fifty kills between hosts
	$(BIN)/python -m pytest $(LONG) -m soak $(ALONE)
	$(MAKE) -j2 soak-hosts soak-faults
	$(BIN)/python -m pytest -n 2 --maxschedchunk=1 $(LONG) -m soak $(addprefix --ignore=,$(ALONE))

# At once: the hosts that are killed wait for most of their time.
soak-hosts: $(READY)
	$(BIN)/python -m tests.net.soak

soak-faults: $(READY)
	$(BIN)/python -m tests.faults.soak

bench: $(READY)  ## speed beside hand-written floors; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.run

site: $(READY)   ## the documentation as a site, in build/site
	$(BIN)/python docs/stage_site.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

site-version: $(READY)  ## this version of the site, beside the others, as a commit of the branch gh-pages
	$(BIN)/python docs/stage_site.py build/site-pages
	export PATH="$(abspath $(BIN)):$$PATH"; NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' fedpeer/version.py) latest
	$(BIN)/mike set-default latest

gpu: $(READY)    ## CPU against CUDA, where there is a device
	$(BIN)/python -m pytest -m gpu

golden: $(READY) ## golden cases: make golden GOLDEN=DIR [OUT=FILE]
	$(BIN)/python -m tests.golden.run $(GOLDEN) $(OUT)

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
