# `make demo` and `make test` need Python >= 3.10, git and a package index, nothing else.
PYTHON ?= python3
# The release that the suite is run with. A torch that the machine already has is used instead.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
HAS_TORCH = $(BIN)/python -c "import torch" 2>/dev/null

# What pip has to say of itself is no news to whoever tries the demo.
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
# Tests rewrite their asserts, the suite starts hundreds of processes: what one compiled, all load.
export PYTHONDONTWRITEBYTECODE =

# Tests wait a quarter of their time, for limits, locks and disks: three keep two cores busy.
# No test is a case: without kopt, collection loads and listens to nothing.
SUITE := -m pytest -n 3 --dist worksteal -p no:kopt

.PHONY: demo test test-all lint imports types docs audit clean

demo: $(VENV)/demo-installed
	rm -rf .demo
	$(BIN)/kopt demo .demo

test: $(VENV)/test-installed
	$(BIN)/python $(SUITE) -m "not long"

test-all: $(VENV)/test-installed
	$(BIN)/python $(SUITE)

lint: $(VENV)/test-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

imports: $(VENV)/test-installed
	$(BIN)/lint-imports

types: $(VENV)/test-installed
	$(BIN)/mypy

# Warnings are errors; the pages of the reference import the package, and some of it torch.
docs: $(VENV)/docs-installed
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -n -c docs . docs/_build

# Asks the advisory database about what a user installs; needs more network than a package index.
audit:
	$(PYTHON) -m venv .audit
	.audit/bin/pip install --quiet pip-audit
	.audit/bin/pip-audit --strict .

clean:
	rm -rf $(VENV) .audit .demo docs/_build docs/reference

# Asked of .venv: PYTHON may be of another environment, whose packages .venv does not have.
$(VENV)/created:
	$(PYTHON) -m venv --system-site-packages $(VENV)
	$(HAS_TORCH) || $(PYTHON) -m venv --clear $(VENV)
	touch $@

# As plain commands: pip install torch==2.13.0; pip install -e .
$(VENV)/demo-installed: $(VENV)/created pyproject.toml
	$(HAS_TORCH) || $(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e .
	touch $@

$(VENV)/docs-installed: $(VENV)/demo-installed
	$(BIN)/pip install --quiet -e '.[docs]'
	touch $@

# As a plain command, after those above: pip install -e '.[test]'
$(VENV)/test-installed: $(VENV)/demo-installed
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@
