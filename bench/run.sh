#!/usr/bin/env bash
# The benchmarks: trainer beside PyTorch, on one rank and with data sharding on two; tokenizer beside Hugging Face and tiktoken. Tables here, JSON under build/bench/.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench
cmake --build --preset release -j "$(nproc)" --target tokenizer_tool
.venv/bin/python bench/step.py build/molen --output build/bench/step.json
echo
.venv/bin/python bench/sharding.py build/molen --output build/bench/sharding.json
echo
.venv/bin/python bench/peers/tokenizer.py --tool build/release/tests/tokenizer_tool --json build/bench/tokenizer.json
