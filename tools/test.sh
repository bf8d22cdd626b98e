#!/usr/bin/env bash
# All tests: style and layers, the torch-free half under ASan and UBSan with the fuzz seeds, then the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build --preset release -j "$(nproc)"
tools/lint.sh
tools/stale_records.py --warn
cmake --preset asan >build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
cmake --build --preset asan -j "$(nproc)"
# Every suite that tests/suites.json names must have run, and nothing may be skipped but what it allows.
failed=0
# Threads of a suite wait for each other, and processes start: one suite more than there are cores keeps the cores busy.
at_once=$(($(nproc) + 1))
ctest --test-dir build/asan --output-junit suites.xml --no-tests=error --output-on-failure -j "$at_once" || failed=1
tools/check_suites.py asan
if [ "$failed" = 1 ]; then
  # LeakSanitizer sometimes dies itself at the end, when all tests of a program have passed. Only where each failure is
  # one of those are they run again.
  logs=build/asan/Testing/Temporary
  [ "$(grep -c 'LeakSanitizer has encountered a fatal error' "$logs/LastTest.log")" = "$(wc -l <"$logs/LastTestsFailed.log")" ]
  ctest --test-dir build/asan --rerun-failed --no-tests=error --output-on-failure
fi
ctest --test-dir build/release --output-junit suites.xml --no-tests=error --output-on-failure --timeout 3000 -j "$at_once" || failed=2
tools/check_suites.py release
[ "$failed" != 2 ]
