# Two commands do all set-up on a machine with Python 3.11 or later: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
PIP = --quiet --disable-pip-version-check
# Leave a core to the processes that tests start themselves.
WORKERS ?= auto
PYTEST_ARGS ?=
STRUCTURE = tests/test_layers.py tests/test_test_folders.py tests/docs/test_history.py

.PHONY: demo test check format docs clean

demo: $(DEMO_VENV)/installed  ## Analyse a bundled trace of two ranks; installs neither torch nor dash.
	$(DEMO_VENV)/bin/gpuscope analyze sample_traces/ddp_slow_loader

$(DEMO_VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e .
	touch $@

test: $(VENV)/installed  ## Everything that this machine can run; at most 7 minutes on two cores.
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

check: $(VENV)/installed  ## Before each commit, under 90 seconds: lint, format, types, and the tests of the layout.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -n 0 $(STRUCTURE)

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/installed  ## Bring the documentation's generated parts up to date, and build it as a site: build/site.
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python docs/build_site.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e ".[check]"
	touch $@

clean:
	rm -rf $(VENV) $(DEMO_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
