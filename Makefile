# Two commands do all set-up on a machine with Python 3.11 or later: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
RELEASE_VENV ?= .venv-release
PIP = --quiet --disable-pip-version-check
# Leave a core to the processes that tests start themselves.
WORKERS ?= auto
PYTEST_ARGS ?=
FUZZ_HOURS ?= 2
STRUCTURE = tests/test_layers.py

.PHONY: demo test check findings fuzz format docs release gpu-check clean

demo: $(DEMO_VENV)/installed  ## Analyse a bundled trace of two ranks; installs neither torch nor dash.
	$(DEMO_VENV)/bin/gpuscope analyze sample_traces/ddp_slow_loader

$(DEMO_VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e .
	touch $@

test: $(VENV)/installed  ## Everything that this machine can run; about 10 minutes on two cores.
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

check: $(VENV)/installed  ## Before each commit, under 90 seconds: lint, format, types, and the tests of the layout.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -n 0 $(STRUCTURE)

fuzz: $(VENV)/installed  ## For FUZZ_HOURS: hostile inputs of every kind, then the native core under AddressSanitizer.
	PYTHONPATH=tests $(VENV)/bin/python -m fuzzing --hours $(FUZZ_HOURS) --out build/fuzz
	$(VENV)/bin/python -m benchmarks.fuzz --seconds 600

findings:  ## What real libraries do that one would not expect: runs each again, and says what has changed.
	$(PYTHON) findings/run.py

gpu-check: $(VENV)/installed  ## On a machine with a GPU: the paths of docs/trust.md that no other machine reaches.
	PYTHONPATH=tests $(VENV)/bin/python -m gpu_check --out build/gpu

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/installed  ## Bring the documentation's generated parts up to date, and build it as a site: build/site.
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python docs/draw_imports.py . gpuscope > docs/images/imports-gpuscope.svg
	$(VENV)/bin/python docs/draw_imports.py . gpuscope.analyzers > docs/images/imports-analyzers.svg
	$(VENV)/bin/python docs/build_site.py

release: $(RELEASE_VENV)/installed  ## Wheel and sdist in dist/, checked, and used in empty environments: docs/releasing.md.
	$(RELEASE_VENV)/bin/python -m release

$(RELEASE_VENV)/installed: constraints.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install $(PIP) -c constraints.txt hatchling setuptools
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e ".[check]"
	touch $@

clean:
	rm -rf $(VENV) $(DEMO_VENV) $(RELEASE_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
