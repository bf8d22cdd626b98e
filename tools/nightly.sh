#!/usr/bin/env bash
# The long checks: fuzzing, ThreadSanitizer, predictions against measurements, the benchmarks. Writes docs/results/nightly-DATE.md with
# machine, commit, commands and figures. FUZZ_SECONDS (60) is the time of each fuzz target.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
out=docs/results/nightly-$(date -u +%F).md
log=build/nightly
mkdir -p "$log" docs/results
record() { printf '| %s | `%s` | %s |\n' "$1" "$2" "$3" >>"$out"; }

{
  echo "# Nightly checks of $(date -u +%F)"
  echo
  echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores"
  echo "commit: $(git rev-parse --short HEAD)"
  echo "covers: src bench tests"
  echo
  echo "| what | command | figure |"
  echo "|---|---|---|"
} >"$out"

# libFuzzer on every parser, under ASan and UBSan.
CC=clang-14 CXX=clang++-14 cmake --preset asan -B build/fuzz -DMOLEN_FUZZ=ON -DMOLEN_TESTS=ON >"$log/fuzz-configure.txt" 2>&1
for source in tests/fuzz/fuzz_*.cpp; do
  name=$(basename "$source" .cpp)
  cmake --build build/fuzz -j "$(nproc)" --target "$name" >"$log/$name-build.txt" 2>&1
  mkdir -p "build/fuzz/corpus/$name"
  if build/fuzz/tests/fuzz/"$name" -max_total_time="$seconds" -rss_limit_mb=4096 "build/fuzz/corpus/$name" "tests/fuzz/seeds/${name#fuzz_}" >"$log/$name.txt" 2>&1; then
    record "fuzzing ${name#fuzz_}" "$name -max_total_time=$seconds" "$(grep -oE 'Done [0-9]+ runs' "$log/$name.txt" | tail -1), no finding"
  else
    record "fuzzing ${name#fuzz_}" "$name -max_total_time=$seconds" "**finding**: see $log/$name.txt"
  fi
done

# ThreadSanitizer on what has threads and no libtorch.
cmake --preset tsan >"$log/tsan-configure.txt" 2>&1
cmake --build --preset tsan -j "$(nproc)" --target comm_test data_test >"$log/tsan-build.txt" 2>&1
for test in comm data; do
  if build/tsan/src/$test/${test}_test >"$log/tsan-$test.txt" 2>&1; then figure=clean; else figure="**failed**: see $log/tsan-$test.txt"; fi
  record "TSan, $test" "build/tsan/src/$test/${test}_test" "$figure"
done

python3 bench/predict.py build/molen >"$log/predict.txt"
record "predicted against measured" "bench/predict.py build/molen" "$(tail -1 "$log/predict.txt")"
.venv/bin/python bench/step.py build/molen >"$log/step.txt"
record "beside PyTorch" "bench/step.py build/molen" "$(grep ' is ' "$log/step.txt" | paste -sd';')"
cat "$out"
! grep -q '\*\*' "$out"
