# Signoff. `make help` lists what there is. Everything is set up in .venv, once, when it is first needed.

.DEFAULT_GOAL := help
# Without bytecode every process compiles all it imports, for seconds. It is kept out of the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode

.PHONY: help setup demo test quick chaos alerts fuzz powerloss check bench docs docs-site lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup:  ## install everything into .venv (instant when it is there)
	@scripts/set-up

demo: setup  ## 60,000 simulated alarms counted in windows, while the desk that gets the alerts fails
	@.venv/bin/python -m signoff_alarms.demo

test: setup  ## static checks and all tests; ARGS="-k merge" passes arguments to pytest
	@scripts/set-up-postgres
	@scripts/set-up-rabbitmq
	@scripts/set-up-redis
	@scripts/set-up-faults
	@scripts/set-up-prometheus
	@scripts/set-up-opensearch
	@scripts/set-up-chromium
	@scripts/docs-site --install
	@scripts/test $(ARGS)

quick: setup  ## static checks and the tests that start nothing else (no Spark, broker or process), in half a minute
	@scripts/test -m "not spark and not servers and not thorough" $(ARGS)

chaos: setup  ## 500,000 messages while every process is killed, 50 times; ARGS="--seed 7" repeats a run
	@scripts/set-up-postgres
	@scripts/set-up-rabbitmq
	@scripts/set-up-faults
	@.venv/bin/python -m tests.chaos.run $(ARGS)

alerts: setup  ## 1,000 alerts that start reports, each published three times, while every process is killed, 20 times
	@scripts/set-up-rabbitmq
	@.venv/bin/python -m tests.chaos.alerts $(ARGS)

powerloss: setup  ## cut the power at many moments: all that was not fsynced is gone; ARGS="--cuts 100 --seed 7"
	@scripts/set-up-faults
	@.venv/bin/python -m tests.powerloss.run $(ARGS)

fuzz: setup  ## generated inputs for all that reads what others wrote; ARGS="--count 1000000 --seed 7"
	@.venv/bin/python -m tests.fuzz.run $(ARGS)

check: setup  ## ruff, mypy and the layers of the tree only
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache --no-logo

bench: setup  ## measure throughput against plain Structured Streaming and Flink SQL
	@.venv/bin/python bench/intake.py
	@.venv/bin/python bench/pipeline.py
	@.venv/bin/python bench/windows.py

docs: setup  ## write docs/reference.md, docs/errors.md and docs/promises.md from the code
	@.venv/bin/signoff describe --all --markdown >docs/reference.md
	@.venv/bin/signoff describe --errors --markdown >docs/errors.md
	@.venv/bin/python -m tests.promises.table >docs/promises.md

docs-site: setup  ## build the documentation site into build/site, and check every link
	@scripts/docs-site

lock:  ## pin all packages again by version and hash (needs uv)
	@scripts/lock

clean:  ## remove .venv, caches and results
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist demo-run bench/results bench/.flink src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
