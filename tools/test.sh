#!/usr/bin/env bash
# All tests: style and layers, the torch-free half under ASan and UBSan with the fuzz seeds, then the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build --preset release -j "$(nproc)"
tools/lint.sh
tools/stale_records.py
cmake --preset asan >build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
cmake --build --preset asan -j "$(nproc)"
if ! ctest --test-dir build/asan --output-on-failure -j "$(nproc)"; then
  # GCC 12's LeakSanitizer sometimes dies itself at the end, when all tests of a program have passed. Only where each failure is
  # one of those are they run again.
  logs=build/asan/Testing/Temporary
  [ "$(grep -c 'LeakSanitizer has encountered a fatal error' "$logs/LastTest.log")" = "$(wc -l <"$logs/LastTestsFailed.log")" ]
  ctest --test-dir build/asan --rerun-failed --output-on-failure
fi
exec ctest --test-dir build/release --output-on-failure --timeout 900 -j "$(nproc)"
