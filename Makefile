# Every target sets up first; when nothing changed that takes a fraction of a second.

PYTHON_IN_VENV = .venv/bin/python
# Tests start hundreds of Pythons: without compiled modules each of them, and pytest's own collection, takes twice as long.
export PYTHONDONTWRITEBYTECODE =
# How many files at a time, on two cores: the quick tests compute, most of the others wait for processes to come up.
# conftest.py says which file goes to which worker.
TWO_FILES_AT_A_TIME = -n 2 --dist loadfile --no-loadscope-reorder
THREE_FILES_AT_A_TIME = -n 3 --dist loadfile --no-loadscope-reorder
# What a run decides with. No code of the project has an assert (ruff's S101), so -O changes little: these would show it.
PURE_CORE = tests/protocol tests/graphs/test_loop_errors.py tests/graphs/test_operator_errors.py

.PHONY: setup demo examples map play docs check test-fast test test-all proof soak bench

setup:            ## .venv with the exact versions of constraints.txt
	@bash scripts/setup.sh

demo: setup       ## a feedback loop on a local Ray that is killed twice, and what happened
	@$(PYTHON_IN_VENV) -m examples.cyclic.demo

examples: setup   ## every example clean, killed three times, audited and compared with Spark: a quarter of an hour
	@$(PYTHON_IN_VENV) -m examples.cyclic

map: setup        ## docs/errors.md, generated from the docstrings of the errors
	@$(PYTHON_IN_VENV) scripts/generated_pages.py

play: setup       ## the pages in docs/play, recorded again: minutes
	@for flow in retries mutual rounds; do \
		$(PYTHON_IN_VENV) -m backedge play examples.cyclic.playable:$$flow docs/play/$$flow.html || exit 1; done

docs: setup       ## the documentation as a site in build/site, in seconds; a broken link or any other warning fails it
	@$(PYTHON_IN_VENV) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[docs]"
	@$(PYTHON_IN_VENV) -m sphinx --quiet --fail-on-warning --fresh-env --write-all --conf-dir docs . build/site
	@echo "build/site/index.html"

check: setup      ## format, lint, types, layers: seconds
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyright
	$(PYTHON_IN_VENV) -m pytest -q tests/project/test_layers.py tests/project/test_architecture.py

test-fast: setup  ## all but the slow tests: about 40 seconds
	$(PYTHON_IN_VENV) -m pytest -q -m "not slow" $(TWO_FILES_AT_A_TIME)

test: setup       ## every test but the long ones, then the pure core once more under python -O: a quarter of an hour on two cores
	$(PYTHON_IN_VENV) -m tests.spark.java_classes
	$(PYTHON_IN_VENV) -m pytest -m "not long" --durations=20 $(THREE_FILES_AT_A_TIME)
	$(PYTHON_IN_VENV) -O -m pytest -q -m "not slow" $(PURE_CORE)

test-all: setup   ## the long tests too: hundreds of drawn flows, an hour
	$(PYTHON_IN_VENV) -m tests.spark.java_classes
	$(PYTHON_IN_VENV) -m pytest --durations=20 $(THREE_FILES_AT_A_TIME)

# The quick ones. `python -m tests.faults --json` makes all of them happen, in a quarter of an hour.
FAULTS = 6,9,11,12,14,16,18,19,20,21,23,28,29,race,memory,postgres

proof: setup      ## the figures of docs/evidence.md again: ten minutes at most on two idle cores; fails if anything is wrong
	@mkdir -p build
	@$(PYTHON_IN_VENV) -m tests.faults --json --only $(FAULTS) > build/faults.jsonl
	@$(PYTHON_IN_VENV) -m proof evidence --faults build/faults.jsonl

MINUTES ?= 60
SEED ?= 7

soak: setup       ## many flows at once under faults drawn from SEED, for MINUTES: verdict and plots in build/soak
	$(PYTHON_IN_VENV) -m tests.soak --minutes $(MINUTES) --seed $(SEED) --json build/soak.json

BENCHES = core loop watch hop count columns snapshot increments start recover calls received crawl rescale restore superstep versions audit pagerank components paths kmeans sgd scale

bench: setup      ## every figure beside its peers: an hour and a half on an idle machine
	@$(PYTHON_IN_VENV) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[bench]" || echo "bench: goes on without the peers that are optional"
	@missed=; for name in $(BENCHES); do $(PYTHON_IN_VENV) -m bench $$name || missed="$$missed $$name"; done; \
		test -z "$$missed" || { echo "bench: limits are missed by$$missed"; exit 1; }
