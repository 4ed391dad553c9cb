# Thin: CMake builds, the scripts in tools/ fetch and prepare. A second run reuses everything.
#
#   make            build/deepinfer
#   make demo       three checkpoints of a real model, one chat, one table
#   make test       unit tests, oracle, command line (no torch)
#   make test-torch the torch and transformers oracles (5 GB, in an environment of their own); with
#                   DEEPINFER_MODULE_TEXT=FILE the module's own text as a client, too
#   make test-full  every float, every shape: long
#   make bench      rates of kernels and models beside the memory roof
#   make cross      one digest: gcc and clang, debug and release, aarch64 and older CPUs under qemu
#   make package    the installed library, static and shared, in a project that uses it
#   make lint asan tsan fuzz clang      what .ci/run runs besides
#   make format install clean

SHELL := /bin/bash
PRESET ?= release
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
MODELS := build/models
QUANTIZED := $(MODELS)/smollm2-fp8-32x32/config.json $(MODELS)/smollm2-mxfp4/config.json
THREADED_TESTS := runtime_test executor_test linear_test module_test grouped_test experts_test routing_test \
  c_api_runtime_test kernels_test verify_bits_test model_test quantize_test
FUZZ_SECONDS ?= 40

.PHONY: all build demo test test-torch test-full bench lint asan tsan fuzz clang cross package \
        format install clean models

all: build

.cache/packages: tools/install_packages.sh
	@tools/install_packages.sh build
	@mkdir -p .cache && touch $@

.cache/packages-dev: tools/install_packages.sh
	@tools/install_packages.sh build dev
	@mkdir -p .cache && touch $@

.cache/packages-cross: tools/install_packages.sh
	@tools/install_packages.sh build dev cross
	@mkdir -p .cache && touch $@

build: .cache/packages
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS)

# Stamps, not the interpreters: those are links to the system's, whose time is not ours.
.venv/.done: tools/requirements.txt .cache/packages
	@echo "== Python environment (.venv)"
	@python3 -m venv --clear .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	@touch $@

.venv-torch/.done: tools/requirements-torch.txt tools/requirements.txt .cache/packages
	@echo "== Python environment with torch and transformers (.venv-torch, 5 GB)"
	@python3 -m venv --clear .venv-torch
	@.venv-torch/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-torch.txt
	@touch $@

$(MODELS)/smollm2-bf16/config.json: .venv/.done tools/import_gguf.py tools/fetch_smollm2.py
	@echo "== SmolLM2-135M: fetch and import"
	@gguf=$$($(PYTHON) tools/fetch_smollm2.py .cache) && mkdir -p $(MODELS) && \
	  $(PYTHON) tools/import_gguf.py "$$gguf" $(MODELS)/smollm2-bf16 --force
	@touch $@

$(MODELS)/smollm2-fp8-32x32/config.json: $(MODELS)/smollm2-bf16/config.json | build
	@rm -rf $(@D)
	@build/deepinfer quantize $(<D) $(@D) --format fp8-32x32

$(MODELS)/smollm2-mxfp4/config.json: $(MODELS)/smollm2-bf16/config.json | build
	@rm -rf $(@D)
	@build/deepinfer quantize $(<D) $(@D) --format mxfp4 --only 'self_attn=fp8-32x32'

models: $(QUANTIZED)

build/jargon.txt: tools/fetch_jargon.sh
	@mkdir -p build && tools/fetch_jargon.sh $@

demo: build models build/jargon.txt
	@$(PYTHON) tools/demo.py

test: build models build/jargon.txt .venv/.done
	@ctest --test-dir build --output-on-failure -j 1
	@rm -rf build/corpus && DEEPINFER_CORPUS=build/corpus build/arithmetic_test >/dev/null
	@$(PYTHON) tests/oracle/check_corpus.py build/corpus/*.corpus | tail -n 1
	@$(PYTHON) -m pytest -q tests/oracle tests/cli tests/zoo

test-torch: build models build/jargon.txt .venv-torch/.done
	@.venv-torch/bin/python -m pytest -q tests/torch

test-full: test
	@DEEPINFER_TEST_FULL=1 ctest --test-dir build --output-on-failure -j 1

bench: build
	@build/deepinfer bench gemm --shape v4.1,smollm2 --m 1,4,64

lint: .cache/packages-dev build
	@tools/lint.sh

asan: .cache/packages-dev
	@cmake --preset asan >/dev/null && cmake --build build-asan -j $(JOBS) --target unit_tests
	@ctest --test-dir build-asan --output-on-failure -j 1

# Only what several threads touch: the rest would find nothing more.
tsan: .cache/packages-dev
	@cmake --preset tsan >/dev/null && cmake --build build-tsan -j $(JOBS) --target $(THREADED_TESTS)
	@for test in $(THREADED_TESTS); do build-tsan/$$test --gtest_brief=1 || exit 1; done

clang: .cache/packages-dev
	@cmake --preset clang >/dev/null
	@cmake --build build-clang -j $(JOBS) --target deepinfer_cli arithmetic_test
	@build-clang/arithmetic_test --gtest_brief=1

cross: .cache/packages-cross .venv/.done build clang
	@for preset in numeric-gcc-debug numeric-clang-debug; do \
	  cmake --preset $$preset >/dev/null && \
	  cmake --build build-$$preset -j $(JOBS) --target arithmetic_test && \
	  build-$$preset/arithmetic_test --gtest_brief=1 || exit 1; done
	@cmake --preset numeric-aarch64 >/dev/null && cmake --build build-numeric-aarch64 -j $(JOBS)
	@ctest --test-dir build-numeric-aarch64 --output-on-failure -j $(JOBS)
	@$(PYTHON) -m pytest -q tests/cross

package: .venv/.done build
	@cmake --preset shared >/dev/null && cmake --build build-shared -j $(JOBS)
	@$(PYTHON) -m pytest -q tests/packaging

fuzz: .cache/packages-dev
	@cmake --preset fuzz >/dev/null && cmake --build build-fuzz -j $(JOBS)
	@tools/fuzz.sh $(FUZZ_SECONDS)

format: .cache/packages-dev
	@git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

install: build
	@cmake --install build

clean:
	@rm -rf build build-*
