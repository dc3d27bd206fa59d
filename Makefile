# Every target sets up first; when nothing changed that takes a fraction of a second.

PYTHON_IN_VENV = .venv/bin/python

.PHONY: setup demo check test-fast test bench

setup:            ## .venv with the exact versions of constraints.txt
	@bash scripts/setup.sh

demo: setup       ## a feedback loop in the simulator, and what happened
	@$(PYTHON_IN_VENV) -m examples.cyclic.retries

check: setup      ## format, lint, types, layers: seconds
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyright
	$(PYTHON_IN_VENV) -m pytest -q tests/project/test_layers.py

test-fast: setup  ## all but the slow tests: under a minute
	$(PYTHON_IN_VENV) -m pytest -q -m "not slow"

test: setup       ## every test, then the fast ones as they run when asserts are compiled away
	$(PYTHON_IN_VENV) -m pytest
	$(PYTHON_IN_VENV) -O -m pytest -q -m "not slow"

bench: setup      ## what the core costs
	@$(PYTHON_IN_VENV) -m bench core
