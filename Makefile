# What a newcomer types. Each target makes the virtual environment .venv itself and reuses it the next time.
#   make demo    three tiers and a supervisor drive the built-in scenario; report in demo_report/
#   make test    all tests             make lint    style and types
#   make bench   measure this machine  make clean   remove what the targets made
#   make safety  the safety core's figures, the search of the supervisor's states, a reduced campaign of faults; safety_report/
#   make forge-demo   distil, prune, quantise, adapt, verify and bundle a small model; report in forge_report/
#   make forge-test   the tests that need PyTorch, which make test skips
# Another interpreter: make demo PYTHON=python3.12 (only counts when .venv is created)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_OUT ?= demo_report
DEMO_ARGS ?=
FORGE_OUT ?= forge_report
SAFETY_OUT ?= safety_report
SAFETY_ARGS ?= --seeds 1
BENCH_ARGS ?=
TEST_ARGS ?=
LINTED := src test launch bench scripts setup.py

.PHONY: help demo test lint bench safety clean forge-demo forge-test environment test-environment forge-environment

help:
	@sed -n 's/^#   //p' Makefile

define need_python
@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not there; install Python 3.10 to 3.13 \
(Debian, Ubuntu: sudo apt install python3 python3-venv python3-dev) or name one: make PYTHON=/path/to/python3." >&2; exit 1; }
endef

environment:
	$(need_python)
	@"$(PYTHON)" scripts/environment.py --venv "$(VENV)"

test-environment:
	$(need_python)
	@"$(PYTHON)" scripts/environment.py --venv "$(VENV)" --extra test

forge-environment:
	$(need_python)
	@"$(PYTHON)" scripts/environment.py --venv "$(VENV)" --extra test --extra forge

demo: environment
	@"$(BIN)/triptych" demo --out "$(DEMO_OUT)" $(DEMO_ARGS)

# Python code comes from src/ (see pyproject.toml), messages and their libraries from the installed package. What watches
# no clock is shared among the cores; the rest comes after it, alone.
test: test-environment
ifeq ($(strip $(TEST_ARGS)),)
	@failed=0; export PYTHONPATH=src; \
	"$(BIN)/python" -m pytest -n auto --dist worksteal -m "not alone" || failed=1; \
	"$(BIN)/python" -m pytest -m alone || failed=1; exit $$failed
else
	@PYTHONPATH=src "$(BIN)/python" -m pytest $(TEST_ARGS)
endif

forge-test: forge-environment
	@PYTHONPATH=src "$(BIN)/python" -m pytest test/forge test/language $(TEST_ARGS)

forge-demo: forge-environment
	@"$(BIN)/triptych" forge demo --out "$(FORGE_OUT)"

lint: test-environment
	@"$(BIN)/ruff" check $(LINTED)
	@"$(BIN)/ruff" format --check $(LINTED)
	@"$(BIN)/mypy"

bench: environment
	@"$(BIN)/triptych" bench $(BENCH_ARGS)

safety: environment
	@"$(BIN)/python" bench/safety_core.py --out "$(SAFETY_OUT)/safety_core.json"
	@"$(BIN)/triptych" verify-supervisor --json "$(SAFETY_OUT)/verification.json"
	@"$(BIN)/triptych" inject --out "$(SAFETY_OUT)" $(SAFETY_ARGS)

clean:
	rm -rf "$(VENV)" build demo_report forge_report safety_report inject_report mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis
