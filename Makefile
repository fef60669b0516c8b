# The two commands that a new user needs: `make run` and `make test`. Everything else is convenience.
PRESET  ?= release
JOBS    ?= $(shell nproc)
PROMPT  ?=
MODEL   ?= smollm2
KVASIR  := build/release/kvasir
export KVASIR_MODELS ?= $(CURDIR)/models
# Text for a model, not for make or the shell: through the environment, as it was written.
override PROMPT := $(value PROMPT)
override MODEL := $(value MODEL)
export PROMPT MODEL

.PHONY: run build test models bench lint fuzz clean help

help:
	@echo "make run [PROMPT='...'] [MODEL=smollm2|gemma3-270m|PATH]   build, fetch the starter model, chat (or answer PROMPT)"
	@echo "make test      build and run every test"
	@echo "make build     build only (PRESET=release|debug|asan|tsan)"
	@echo "make models    fetch the starter models, and the vocabularies and chat templates that tests use, into models/"
	@echo "make bench     op and end-to-end benchmarks, as fractions of this machine's limits"
	@echo "make lint      clang-format and clang-tidy"
	@echo "make fuzz      every fuzzer for a short fixed number of runs"

build/$(PRESET)/build.ninja: CMakeLists.txt CMakePresets.json | setup
	cmake --preset $(PRESET) $(CMAKE_ARGS)

.PHONY: setup
setup:
	@scripts/setup

build: build/$(PRESET)/build.ninja
	cmake --build --preset $(PRESET) -j $(JOBS)

# A terminal gets a chat; a prompt, or no terminal, gets one answer.
run: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target kvasir_main
	@$(KVASIR) get "$$MODEL" --if-missing
	@if [ -n "$$PROMPT" ]; then $(KVASIR) generate "$$MODEL" --prompt "$$PROMPT" --temperature 0 --max-tokens 200; \
	elif [ -t 0 ] && [ -t 1 ]; then $(KVASIR) chat "$$MODEL"; \
	else $(KVASIR) generate "$$MODEL" --prompt "What do plants need to grow?" --temperature 0 --max-tokens 100; fi

models: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target kvasir_main
	@$(KVASIR) get smollm2 --if-missing
	@$(KVASIR) get gemma3-270m --if-missing
	@python3 tools/oracles/real_vocabularies.py $(KVASIR_MODELS)/tokenizers --if-missing
	@python3 tools/oracles/real_templates.py $(KVASIR_MODELS)/templates --if-missing

test: build models
	ctest --preset $(PRESET) -j $(JOBS)

bench: build
	@for b in build/release/src/*/*_bench build/release/src/*/*/*_bench; do [ ! -x $$b ] || $$b --benchmark_min_time=0.05; done
	@$(KVASIR) get smollm2 --if-missing
	@$(KVASIR) bench smollm2

lint: build/release/build.ninja
	@scripts/lint

fuzz: | setup
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@scripts/fuzz $(FUZZ_RUNS)

clean:
	rm -rf build
