#!/usr/bin/env bash
# All tests: style and layers, the torch-free half under ASan and UBSan with the fuzz seeds, then the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build --preset release -j "$(nproc)"
tools/lint.sh
tools/stale_records.py
cmake --preset asan >build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
cmake --build --preset asan -j "$(nproc)"
ctest --test-dir build/asan --output-on-failure -j "$(nproc)"
exec ctest --test-dir build/release --output-on-failure --timeout 900 -j "$(nproc)"
