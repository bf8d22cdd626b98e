#!/usr/bin/env bash
# The benchmarks: trainer beside every way in which PyTorch makes a step well, a sparse model's step beside PyTorch's forms of experts, then beside plain PyTorch on one rank and with data sharding on two; the start on many shards; predictions beside what steps take; the speed of a search for layouts, and of simulations as models grow; tokenizer beside Hugging Face and tiktoken.
# Tables here, JSON under build/bench/, records in docs/results. Exit status 1 where a bound of docs/results/metrics.json is missed; all of them run all the same.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench
cmake --build --preset release -j "$(nproc)" --target tokenizer_tool
failed=0
.venv/bin/python bench/ratios.py build/molen --rounds 3 --record || failed=1
echo
.venv/bin/python bench/experts.py build/molen --record || failed=1
echo
.venv/bin/python bench/step.py build/molen --record --output build/bench/step.json || failed=1
echo
.venv/bin/python bench/sharding.py build/molen --record --output build/bench/sharding.json || failed=1
echo
.venv/bin/python bench/startup.py build/molen --record || failed=1
echo
.venv/bin/python bench/search.py build/molen --record || failed=1
.venv/bin/python bench/growth.py build/molen --record || failed=1
echo
.venv/bin/python bench/predict.py build/molen --record --output build/bench/predict.json || failed=1
.venv/bin/python bench/predict.py build/molen --layouts --record --output build/bench/predict-layouts.json || failed=1
echo
.venv/bin/python bench/peers/tokenizer.py --tool build/release/tests/tokenizer_tool --record --json build/bench/tokenizer.json || failed=1
tools/results.py page
exit "$failed"
