# The few commands of molen; `make help` lists them. Everything else is CMake (CMakePresets.json).
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
PRESET ?= release

.PHONY: help setup build demo test bench validate nightly lint clean

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s:

setup:           ## Debian packages and the Python environment with libtorch
	@tools/setup.sh

build: setup     ## the program, at build/molen
	@cmake --preset $(PRESET) $(CMAKE_ARGS) >build-$(PRESET).log 2>&1 || { cat build-$(PRESET).log; exit 1; }
	@mkdir -p build && mv build-$(PRESET).log build/configure.log
	@cmake --build --preset $(PRESET) -j $(JOBS) --target molen
	@ln -sfn $(PRESET)/src/apps/molen build/molen

demo: build      ## train, resume, generate and export a small Llama on Dutch and English
	@demo/run.sh

test: build      ## every test; the last lines are ctest's summary, what was skipped, and how much ran
	@tools/setup.sh test
	@tools/test.sh

bench: build     ## trainer, sharding and tokenizer beside their peers, predictions beside runs; fails where a bound is missed
	@tools/setup.sh test
	@bench/run.sh

validate: build  ## predictions beside what others published of their runs; fails where a bound is missed
	@tools/setup.sh test
	@.venv/bin/python bench/other_machines.py build/molen; others=$$?; \
	.venv/bin/python bench/published.py build/molen --fit build/factors.json --iterations 4 --refresh 4 && exit $$others

nightly: build   ## long checks: fuzzing, TSan, mutants, exhaustive matrices; records in docs/results
	@tools/setup.sh test
	@tools/nightly.sh

lint: build      ## formatter, layers, headers, page of results
	@tools/setup.sh test
	@tools/lint.sh
	@tools/check_headers.py

clean:           ## removes build/ and runs of the demo
	@rm -rf build demo/out
