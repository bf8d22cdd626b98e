#!/usr/bin/env bash
# The long checks, whose figures are kept in docs/results/nightly-DATE.md with machine, commit and commands.
# `nightly.sh [fuzz|tsan|ubsan|tidy|verify|hang|predict|bench ...]`: those parts only, in nightly-DATE-PARTS.md; all by default. FUZZ_SECONDS (60) is the time of each target.
# VERIFY_RANKS ("2 3 4 6 8") and VERIFY_FAMILIES ("llama gpt") are what `verify` runs; variants beside them belong to 4 and 8 ranks.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(fuzz tsan ubsan tidy verify hang predict bench)
seconds=${FUZZ_SECONDS:-60}
out=docs/results/nightly-$(date -u +%F)$(printf -- '-%s' "$@" ${VERIFY_FAMILIES:-} ${VERIFY_RANKS:-} | sed 's/^-$//').md
log=build/nightly
mkdir -p "$log" docs/results
record() { printf '| %s | `%s` | %s |\n' "$1" "$2" "$3" >>"$out"; }

begin() {
  {
    echo "# Nightly checks of $(date -u +%F)"
    echo
    echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores"
    echo "commit: $(git rev-parse --short HEAD)"
    echo "covers: src bench tests"
    echo "parts: ${parts[*]}"
    echo
    echo "| what | command | figure |"
    echo "|---|---|---|"
  } >"$out"
}

# libFuzzer on every parser, under ASan and UBSan.
fuzz() {
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
}

# ThreadSanitizer on what has threads and no libtorch.
tsan() {
  cmake --preset tsan >"$log/tsan-configure.txt" 2>&1
  cmake --build --preset tsan -j "$(nproc)" --target comm_test data_test energy_test >"$log/tsan-build.txt" 2>&1
  for test in comm data energy; do
    if build/tsan/src/$test/${test}_test >"$log/tsan-$test.txt" 2>&1; then figure="$(grep -oE '[0-9]+ tests? from' "$log/tsan-$test.txt" | tail -1 | cut -d' ' -f1) tests, clean"; else figure="**failed**: see $log/tsan-$test.txt"; fi
    record "TSan, $test" "build/tsan/src/$test/${test}_test" "$figure"
  done
}

# UndefinedBehaviorSanitizer with all its checks, on the torch-free code; `make test` has it beside ASan without those of
# every pointer.
ubsan() {
  cmake --preset ubsan >"$log/ubsan-configure.txt" 2>&1
  cmake --build --preset ubsan -j "$(nproc)" >"$log/ubsan-build.txt" 2>&1
  if ctest --test-dir build/ubsan -j "$(nproc)" >"$log/ubsan.txt" 2>&1; then figure="$(grep 'tests passed' "$log/ubsan.txt")"; else figure="**failed**: see $log/ubsan.txt"; fi
  record "UBSan" "ctest --test-dir build/ubsan" "$figure"
}

# Findings by check; .clang-tidy says which are looked for.
tidy() {
  git ls-files 'src/*.cpp' | grep -v _test.cpp | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/release --quiet >"$log/tidy.txt" 2>/dev/null || true
  local found
  found=$(grep -oE '(warning|error): .*\[[a-z.,A-Z-]+\]$' "$log/tidy.txt" | grep -oE '\[[^]]*\]$' | sort | uniq -c | sort -rn | awk '{print $2 " " $1}' | paste -sd';')
  if [ -z "$found" ]; then record "clang-tidy" "clang-tidy-14 -p build/release" "$(git ls-files 'src/*.cpp' | grep -cv _test.cpp) files, no finding"
  else record "clang-tidy" "clang-tidy-14 -p build/release" "**findings**: $found"; fi
}

# `molen verify` with these options beside the sizes of $sizes, recorded whole: record_layouts NAME WHAT OPTIONS...
record_layouts() {
  local name=$1 what=$2 figure
  shift 2
  if build/molen verify "${sizes[@]}" "$@" >"$log/verify-$name.txt" 2>&1; then figure="$(tail -1 "$log/verify-$name.txt")"
  else figure="**differs**: see $log/verify-$name.txt"; fi
  record "layouts, $what" "molen verify ${sizes[*]} $*" "$figure"
}

# Every layout of the sizes on so many ranks, likewise, in two processes of half the strategies each: one leaves a third of
# two cores to its ranks' waits for each other. Both must come to what --static counts: record_matrix NAME WHAT RANKS.
record_matrix() {
  local name=$1 what=$2 ranks=$3 jobs=() halves=() ended=0 rows same most wanted
  for strategies in NO_SHARD,ZERO1,HYBRID_SHARD SHARD_GRAD_OP,FULL_SHARD,HYBRID_SHARD_ZERO2; do
    halves+=("$log/verify-$name-${strategies%%,*}.txt")
    build/molen verify "${sizes[@]}" --ranks "$ranks" --layouts "$strategies" >"${halves[-1]}" 2>&1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || ended=1; done
  wanted=$(($(build/molen verify "${sizes[@]}" --ranks "$ranks" --static | grep -c 'sound$' || true) * 2))
  read -r rows same most < <(sed -nE 's/^([0-9]+) layouts, ([0-9]+) of .* is ([0-9.]+) of .*/\1 \2 \3/p' "${halves[@]}" |
    awk '{ rows += $1; same += $2; if ($3 + 0 > most + 0) most = $3 } END { print rows + 0, same + 0, most + 0 }')
  local figure="$wanted layouts, in two halves of the strategies, $same of them the same model; the largest difference is $most of its bound"
  [ "$ended" = 0 ] && [ "$rows" = "$wanted" ] && [ "$same" = "$wanted" ] || figure="**differs** ($rows run): $figure; see ${halves[*]}"
  record "layouts, $what" "molen verify ${sizes[*]} --ranks $ranks" "$figure"
}

# Every layout of 2 to 8 ranks beside one rank: a grouped-query Llama and a GPT of awkward sizes, whose 12 heads 4 tensor
# ranks share (3 key heads of the Llama's do not divide). Eight layers, for four stages of two chunks.
verify() {
  for family in ${VERIFY_FAMILIES:-llama gpt}; do
    local sizes=(--set "model.family=$family" --set model.layers=8 --set model.hidden=30 --set model.ffn=44 --set model.heads=12
      --set model.head_dim=6 --set model.vocabulary=71 --set model.max_sequence=64 --set data.sequence_length=12
      --set batch.global=24 --set batch.micro=3 --set 'device.kind="cpu"')
    [ "$family" = gpt ] || sizes+=(--set model.kv_heads=3)
    for ranks in ${VERIFY_RANKS:-2 3 4 6 8}; do
      record_matrix "$family-$ranks" "$family, $ranks ranks" "$ranks"
      case $ranks in
        8) record_layouts "$family-context" "$family, 8 ranks, pairs of all choices with up to 8 context ranks" --ranks 8 --cover pairs --set data.sequence_length=16 ;;
        4)
          record_layouts "$family-pieces" "$family, 4 ranks, pairs, rows in 3 pieces and whole" --ranks 4 --cover pairs --set parallel.tensor_chunks=3
          record_layouts "$family-halves" "$family, 4 ranks, pairs, units of half a layer" --ranks 4 --cover pairs --set parallel.unit_layers=half
          record_layouts "$family-threes" "$family, 4 ranks, pairs, units of three layers" --ranks 4 --cover pairs --set parallel.unit_layers=3
          record_layouts "$family-host" "$family, 4 ranks, pairs, states and activations on the host" --ranks 4 --cover pairs --set 'parallel.offload=["optimizer","gradients","parameters","activations"]'
          ;;
      esac
    done
  done
}

# A stopped rank under the limit of a run that says none: 30 seconds of waiting.
hang() {
  local figure
  if MOLEN_NIGHTLY=1 .venv/bin/python tests/end_to_end/flight.py build/molen >"$log/hang.txt" 2>&1; then figure="$(grep -oE 'shipped: reported after [0-9.]+ s|skipped: .*' "$log/hang.txt")"
  else figure="**failed**: see $log/hang.txt"; fi
  record "a stopped rank, the limit as shipped" "MOLEN_NIGHTLY=1 tests/end_to_end/flight.py build/molen" "$figure"
}

predict() {
  python3 bench/predict.py build/molen >"$log/predict.txt"
  record "predicted against measured" "bench/predict.py build/molen" "$(tail -1 "$log/predict.txt")"
}

bench() {
  .venv/bin/python bench/step.py build/molen >"$log/step.txt"
  record "beside PyTorch" "bench/step.py build/molen" "$(grep ' is ' "$log/step.txt" | paste -sd';')"
  .venv/bin/python bench/sharding.py build/molen >"$log/sharding.txt"
  record "sharding beside PyTorch" "bench/sharding.py build/molen" "$(grep -oE '^[A-Z0-9_]+ .*x \[[0-9., ]*\]' "$log/sharding.txt" | tr -s ' ' | paste -sd';')"
  record "communication hidden, per axis" "bench/sharding.py build/molen" "$(grep -E '^[A-Z0-9_]+ +axis ' "$log/sharding.txt" | tr -s ' ' | paste -sd';')"
}

begin
for part in "${parts[@]}"; do
  case $part in
    fuzz | tsan | ubsan | tidy | verify | hang | predict | bench) "$part" ;;
    *) echo "nightly: no part $part (fuzz, tsan, ubsan, tidy, verify, hang, predict, bench)" >&2; exit 2 ;;
  esac
done
cat "$out"
! grep -q '\*\*' "$out"
