#!/usr/bin/env bash
# The long checks. What they measure is added to docs/results/records.jsonl, with machine, commit and command, and shown in docs/RESULTS.md; findings are listed at
# the end, and there being one is exit status 1.
# `nightly.sh [fuzz|tsan|ubsan|optimised|tidy|headers|verify|static|waits|hang|slurm|load|overlap|mutate|exhaustive|predict|bench ...]`: those parts only; all by default. FUZZ_SECONDS (60) is the time of each target.
# VERIFY_RANKS ("2 3 4 6 8") and VERIFY_FAMILIES ("llama gpt") are what `verify` runs; variants beside them belong to 4 and 8 ranks.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(fuzz tsan ubsan optimised tidy headers verify static waits hang slurm load overlap mutate exhaustive bench) # bench runs predict too
seconds=${FUZZ_SECONDS:-60}
log=build/nightly
findings=()
mkdir -p "$log"
# record METRIC VALUE COMMAND [NOTE]
record() {
  tools/results.py add "$1" "$2" --command "$3" ${4:+--note "$4"}
  tools/results.py judge "$1" "$2" >/dev/null || findings+=("$1 is $2, beyond its bound")
  printf '%s: %s (%s)\n' "$1" "$2" "${4:-$3}"
}
finding() { findings+=("$1") && printf '** %s\n' "$1"; }

# libFuzzer on every parser, under ASan and UBSan.
fuzz() {
  CC=clang-16 CXX=clang++-16 cmake --preset asan -B build/fuzz -DMOLEN_FUZZ=ON -DMOLEN_TESTS=ON >"$log/fuzz-configure.txt" 2>&1
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    cmake --build build/fuzz -j "$(nproc)" --target "$name" >"$log/$name-build.txt" 2>&1
    mkdir -p "build/fuzz/corpus/$name"
    if build/fuzz/tests/fuzz/"$name" -max_total_time="$seconds" -rss_limit_mb=4096 "build/fuzz/corpus/$name" "tests/fuzz/seeds/${name#fuzz_}" >"$log/$name.txt" 2>&1; then
      record "fuzz/${name#fuzz_}" "$(sed -nE 's/^Done ([0-9]+) runs.*/\1/p' "$log/$name.txt" | tail -1)" "FUZZ_SECONDS=$seconds tools/nightly.sh fuzz"
    else
      finding "fuzzing ${name#fuzz_}: see $log/$name.txt"
    fi
  done
}

# ThreadSanitizer: first what has threads and no libtorch, then the executor, the trainer and the tests of programs on ranks that tools/tsan_rank_tests.txt names; all of
# them would take hours. tools/tsan_suppressions.txt holds what is said of libtorch, which is not built for it.
tsan() {
  cmake --preset tsan >"$log/tsan-configure.txt" 2>&1
  cmake --build --preset tsan -j "$(nproc)" --target comm_test data_test energy_test store_test actuate_test collect_test daemon_test >"$log/tsan-build.txt" 2>&1
  for test in comm data energy store actuate collect daemon; do tsan_test tsan "$test" '*'; done
  cmake --preset tsan-torch >"$log/tsan-torch-configure.txt" 2>&1
  cmake --build --preset tsan-torch -j "$(nproc)" --target exec_test launch_test prove_test train_test >"$log/tsan-torch-build.txt" 2>&1
  tsan_test tsan-torch exec '*'
  # Waiting bounds times, which this build does not keep. Resident runs threads of OpenMP, whose start and end TSan does not see: libgomp is not built for it.
  tsan_test tsan-torch train '-Waiting.*:Resident.*'
  for test in launch prove; do tsan_test tsan-torch "$test" "$(grep -v '^#' tools/tsan_rank_tests.txt | paste -sd:)"; done
}

# tsan_test PRESET MODULE FILTER
tsan_test() {
  local program=build/$1/src/$2/$2_test
  if TSAN_OPTIONS="suppressions=$PWD/tools/tsan_suppressions.txt halt_on_error=1" OMP_NUM_THREADS=1 "$program" --gtest_filter="$3" >"$log/tsan-$2.txt" 2>&1; then
    record "tsan/$2" "$(sed -nE 's/^\[=+\] ([0-9]+) tests? from .* ran\..*/\1/p' "$log/tsan-$2.txt")" "tools/nightly.sh tsan"
  else
    finding "TSan, $2: see $log/tsan-$2.txt"
  fi
}

# UndefinedBehaviorSanitizer with all its checks, on the torch-free code; `make test` has it beside ASan without those of
# every pointer.
ubsan() {
  cmake --preset ubsan >"$log/ubsan-configure.txt" 2>&1
  cmake --build --preset ubsan -j "$(nproc)" >"$log/ubsan-build.txt" 2>&1
  if ctest --test-dir build/ubsan --output-junit suites.xml --no-tests=error -j "$(nproc)" >"$log/ubsan.txt" 2>&1 && tools/check_suites.py asan build/ubsan >>"$log/ubsan.txt" 2>&1; then
    record ubsan "$(sed -nE 's/^100% tests passed, 0 tests failed out of ([0-9]+)/\1/p' "$log/ubsan.txt")" "tools/nightly.sh ubsan"
  else
    finding "UBSan: see $log/ubsan.txt"
  fi
}

# The tests of the torch-free code as users build it; `make test` runs most of them under ASan only.
optimised() {
  cmake --preset release -B build/optimised -DMOLEN_TORCH=OFF -DMOLEN_TESTS_SANITIZED_ELSEWHERE=OFF >"$log/optimised-configure.txt" 2>&1
  cmake --build build/optimised -j "$(nproc)" >"$log/optimised-build.txt" 2>&1
  if ctest --test-dir build/optimised --output-junit suites.xml --no-tests=error -j "$(nproc)" >"$log/optimised.txt" 2>&1 && tools/check_suites.py asan build/optimised >>"$log/optimised.txt" 2>&1; then
    printf 'optimised: %s\n' "$(tail -1 "$log/optimised.txt")"
  else
    finding "torch-free tests of the release build: see $log/optimised.txt"
  fi
}

# clang-tidy, which reads again only what has changed since it found nothing.
tidy() {
  local said files read
  if said=$(tools/tidy.py build/release 2>"$log/tidy-errors.txt"); then
    read -r files read <<<"$said"
    record tidy "$files" "tools/nightly.sh tidy" "$read files of the compiler were read now, the others before, unchanged; src/math is not read"
  else
    finding "clang-tidy: ${said:-see $log/tidy-errors.txt}; see $log/tidy.txt"
  fi
}

# Each header compiles alone.
headers() {
  tools/check_headers.py >"$log/headers.txt" 2>&1 || finding "headers: see $log/headers.txt"
}

# Layouts, runs, how many are the same model and the largest difference, of the last lines of `molen verify`: verdicts FILE...
verdicts() {
  sed -nE 's/^([0-9]+) layouts in .*: ([0-9]+) of .* is ([0-9.]+) of .*/\1 \2 \3/p' "$@" | awk '{ rows += $1; same += $2; if ($3 + 0 > most + 0) most = $3 } END { print rows + 0, same + 0, most + 0 }'
}

# `molen verify` with these options beside the sizes of $sizes: record_layouts METRIC OPTIONS...
record_layouts() {
  local metric=$1 file=$log/verify-${1//\//-}.txt rows same most ended=0
  shift
  build/molen verify "${sizes[@]}" "$@" >"$file" 2>&1 || ended=1
  read -r rows same most < <(verdicts "$file")
  if [ "$ended" = 0 ] && [ "$rows" -gt 0 ] && [ "$rows" = "$same" ]; then record "$metric" "$most" "molen verify ${sizes[*]} $*" "$rows layouts, all the same model"
  else finding "$metric: see $file"; fi
}

# Every layout of the sizes on so many ranks, likewise, in two processes of half the strategies each: one leaves a third of
# two cores to its ranks' waits for each other. Both must come to what --static counts: record_matrix METRIC RANKS.
record_matrix() {
  local metric=$1 ranks=$2 jobs=() halves=() ended=0 rows same most wanted
  for strategies in NO_SHARD,ZERO1,HYBRID_SHARD SHARD_GRAD_OP,FULL_SHARD,HYBRID_SHARD_ZERO2; do
    halves+=("$log/verify-${metric//\//-}-${strategies%%,*}.txt")
    build/molen verify "${sizes[@]}" --ranks "$ranks" --layouts "$strategies" >"${halves[-1]}" 2>&1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || ended=1; done
  wanted=$(build/molen verify "${sizes[@]}" --ranks "$ranks" --static | grep -c 'sound$' || true)
  read -r rows same most < <(verdicts "${halves[@]}")
  if [ "$ended" = 0 ] && [ "$wanted" -gt 0 ] && [ "$rows" = "$wanted" ] && [ "$same" = "$wanted" ]; then record "$metric" "$most" "molen verify ${sizes[*]} --ranks $ranks" "$rows layouts, all the same model"
  else finding "$metric ($rows of $wanted layouts run, $same the same): see ${halves[*]}"; fi
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
      record_matrix "layouts/$family-$ranks" "$ranks"
      case $ranks in
        8)
          record_layouts "layouts/$family-context" --ranks 8 --cover pairs --set data.sequence_length=16
          [ "$family" = gpt ] || record_layouts "layouts/$family-experts" --ranks 8 --cover pairs --set model.experts=8 --set model.experts_per_token=2
          ;;
        4)
          record_layouts "layouts/$family-pieces" --ranks 4 --cover pairs --set parallel.tensor_chunks=3
          [ "$family" = gpt ] || record_layouts "layouts/$family-tiles" --ranks 4 --cover pairs --set model.experts=8 --set model.experts_per_token=2 --set parallel.expert_tiles=2
          record_layouts "layouts/$family-halves" --ranks 4 --cover pairs --set parallel.unit_layers=half
          record_layouts "layouts/$family-threes" --ranks 4 --cover pairs --set parallel.unit_layers=3
          record_layouts "layouts/$family-host" --ranks 4 --cover pairs --set 'parallel.offload=["optimizer","gradients","parameters","activations"]'
          ;;
      esac
    done
  done
}

# Verifies plans of many ranks, all of whose lines must be sound. The figure is the time of the whole command, or that of its slowest line:
# verify_plans METRIC whole|slowest LINES OPTIONS...
verify_plans() {
  local metric=$1 figure=$2 lines=$3 file=$log/${1//\//-}.txt start=$EPOCHREALTIME seconds sound
  shift 3
  build/molen verify --static "$@" >"$file" 2>&1 || true
  seconds=$(awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
  [ "$figure" = whole ] || seconds=$(sed -nE 's/.* ([0-9.]+)  sound$/\1/p' "$file" | sort -g | tail -1)
  sound=$(grep -c 'sound$' "$file" || true)
  if [ "$sound" = "$lines" ] && [ -n "$seconds" ]; then record "$metric" "$seconds" "molen verify --static $*"
  else finding "$metric: $sound of $lines lines are sound; see $file"; fi
}
static() {
  verify_plans static/llama-70b whole 531 --model llama3-70b --cover pairs --ranks 1024 --set batch.global=1024 --set batch.micro=1
  verify_plans static/10000 slowest 342 --model llama3-8b --cover pairs --ranks 10000 --set batch.global=20000
  verify_plans static/gpt-1t whole 64 --model gpt-1t --layouts given --ranks 3072 --set parallel.tensor=8 --set parallel.pipeline=64 --set parallel.zero=1 \
    --set batch.global=9600 --set batch.micro=1 --set precision.compute=bf16 --set data.sequence_length=2048
  verify_plans static/llama-405b whole 16 --model llama3-405b --layouts given --ranks 16384 --set parallel.tensor=8 --set parallel.context=16 --set parallel.pipeline=16 \
    --set parallel.zero=1 --set batch.global=128 --set batch.micro=1 --set precision.compute=bf16 --set data.sequence_length=131072
}

# Simulator and executor where nothing but waiting differs, in all layouts that cover the pairs of choices on 4 and 8 ranks.
waits() {
  cmake --build --preset release -j "$(nproc)" --target prove_test >"$log/waits-build.txt" 2>&1
  if ! MOLEN_EXHAUSTIVE=1 build/release/src/prove/prove_test --gtest_filter='*SimulatedWaits.*' >"$log/waits.txt" 2>&1; then finding "simulated waits: see $log/waits.txt" && return; fi
  local ranks
  for ranks in 4 8; do
    record "waits/$ranks" "$(sed -nE "s/^$ranks ranks: .*largest difference [+-]([0-9.]+) %.*/\1/p" "$log/waits.txt")" "tools/nightly.sh waits" "$(sed -nE "s/^$ranks ranks: ([0-9]+ of [0-9]+ layouts).*/\1/p" "$log/waits.txt")"
  done
}

# A stopped rank under the limit of a run that says none: 30 seconds of waiting.
hang() {
  if MOLEN_NIGHTLY=1 .venv/bin/python tests/end_to_end/flight.py build/molen >"$log/hang.txt" 2>&1; then
    record flight/stopped "$(sed -nE 's/^ok  shipped: reported after ([0-9.]+) s$/\1/p' "$log/hang.txt")" "MOLEN_NIGHTLY=1 tests/end_to_end/flight.py build/molen"
  else
    finding "a stopped rank: see $log/hang.txt"
  fi
}

# The plugin and the trials of sweeps on a real Slurm of two nodes, where MOLEN_SLURM_SCRIPTS says how to start one. The script that starts it may install Slurm, and with it
# the headers that the plugin needs.
slurm() {
  [ -n "${MOLEN_SLURM_SCRIPTS:-}" ] || { echo "slurm: skipped, MOLEN_SLURM_SCRIPTS is not set (docs/slurm-plugin.md)"; return; }
  echo '#include <slurm/spank.h>' | c++ -x c++ -fsyntax-only -include stdint.h - 2>/dev/null || { "$MOLEN_SLURM_SCRIPTS/up" 2 && "$MOLEN_SLURM_SCRIPTS/down"; } >"$log/slurm-install.txt" 2>&1 || true
  local ended=0 swept=0
  cmake --preset release >"$log/slurm-configure.txt" 2>&1
  cmake --build --preset release -j "$(nproc)" --target molen molen_slurm_plugin >"$log/slurm-build.txt" 2>&1 || { finding "the plugin for Slurm is not built: see $log/slurm-configure.txt and $log/slurm-build.txt"; return; }
  python3 tests/end_to_end/slurm_energy.py build/molen build/release/src/slurm/molen_energy.so >"$log/slurm.txt" 2>&1 || ended=$?
  case $ended in
    0 | 77) printf 'slurm: %s\n' "$(tail -1 "$log/slurm.txt")" ;; # 77: the test has said why it was skipped
    *) finding "the plugin for Slurm: see $log/slurm.txt" ;;
  esac
  python3 tests/end_to_end/slurm_sweep.py build/molen >"$log/slurm-sweep.txt" 2>&1 || swept=$?
  case $swept in
    0 | 77) printf 'slurm: %s\n' "$(tail -1 "$log/slurm-sweep.txt")" ;;
    *) finding "trials on Slurm: see $log/slurm-sweep.txt" ;;
  esac
}

# A load of a 1 GiB checkpoint: bytes that it reads over those that it needs, the most of all pairs of layouts.
load() {
  cmake --build --preset release -j "$(nproc)" --target prove_test >"$log/load-build.txt" 2>&1
  if MOLEN_LOAD_MIB=1024 build/release/src/prove/prove_test --gtest_filter=LoadedBytes.* >"$log/load.txt" 2>&1; then
    record load/read "$(sed -nE 's/^bytes read over bytes needed: ([0-9.]+)$/\1/p' "$log/load.txt")" "tools/nightly.sh load" "of $(grep -c 'bytes read over bytes needed, ' "$log/load.txt") pairs of layouts"
  else
    finding "a load reads more than it needs: see $log/load.txt"
  fi
}

# Small faults put into src, each of which a test must catch.
mutate() {
  if .venv/bin/python tools/mutate.py --seed "${MUTATE_SEED:-$(date -u +%Y%m%d)}" >"$log/mutate.txt" 2>&1; then
    record mutants/caught "$(sed -nE 's/^mutants: .* caught \(([0-9.]+)%\).*/\1/p' "$log/mutate.txt")" "tools/nightly.sh mutate" "$(tail -1 "$log/mutate.txt")"
  else
    finding "mutants: $(tail -1 "$log/mutate.txt"); see $log/mutate.txt"
  fi
}

# All cases of the tests that `make test` samples: edits of programs that the verifier must refuse, types of layouts, power cuts, ten steps of each layout beside one rank, and
# the scripts that run layouts and strings beside PyTorch and tokenizers.
exhaustive() {
  cmake --build --preset release -j "$(nproc)" --target program_test plan_test prove_test data_test >"$log/exhaustive-build.txt" 2>&1
  local ran=0 suite script
  for suite in "program *Edited.*:Figures.*" "plan Types.*" "data PreparePower.*" "prove Matrix/*:Context/*:Some/*:All/Optimizers.*"; do
    if MOLEN_EXHAUSTIVE=1 "build/release/src/${suite%% *}/${suite%% *}_test" --gtest_filter="${suite#* }" >"$log/exhaustive-${suite%% *}.txt" 2>&1; then
      ran=$((ran + $(sed -nE 's/^\[=+\] ([0-9]+) tests? from .* ran\..*/\1/p' "$log/exhaustive-${suite%% *}.txt")))
    else
      finding "a test of all cases fails: see $log/exhaustive-${suite%% *}.txt"
      return
    fi
  done
  for script in end_to_end/layouts oracle/torch_parity oracle/tokenizer_parity; do
    local tool=()
    [ "$script" != oracle/tokenizer_parity ] || tool=(tokenizer)
    MOLEN_EXHAUSTIVE=1 .venv/bin/python "tests/$script.py" build/molen "${tool[@]}" >"$log/exhaustive-$(basename "$script").txt" 2>&1 || finding "$script.py with all cases: see $log/exhaustive-$(basename "$script").txt"
  done
  record exhaustive "$ran" "tools/nightly.sh exhaustive"
}

# The shares of communication and copies that computation hides, and the idle shares of pipelines, as the tests that time them print them. The first of several lines counts.
overlap() {
  local file=$log/overlap.txt metric pattern value
  cmake --build --preset release -j "$(nproc)" --target prove_test >"$log/overlap-build.txt" 2>&1
  if ! build/release/src/prove/prove_test --gtest_filter='Overlap.*:PiecesOverlap.*:Offload.CopiesAndUpdatesRunBesideEachOther:PipelineIdle.*' >"$file" 2>&1; then
    finding "overlap and idle shares: see $file"
    return
  fi
  while IFS='|' read -r metric pattern; do
    value=$(sed -nE "s/$pattern.*/\1/p" "$file" | head -1)
    if [ -n "$value" ]; then record "$metric" "$value" "tools/nightly.sh overlap"; else finding "$metric: no line of it in $file"; fi
  done <<'PATTERNS'
hidden/units_zero2|^ZeRO-2, prefetch 1: ([0-9.]+) %
hidden/units_zero3|^ZeRO-3, prefetch 1: ([0-9.]+) %
hidden/pieces|^rows in 1, 2, 4 pieces: [0-9.]+, ([0-9.]+),
hidden/offload|^[0-9.]+ s of copies beside [0-9.]+ s of computation: ([0-9.]+) %
idle/GPipe|^4 stages, 8 micro-batches, gpipe +idle +([0-9.]+) %
idle/1F1B|^4 stages, 8 micro-batches, 1f1b +idle +([0-9.]+) %
idle/interleaved x 2|^4 stages, 8 micro-batches, interleaved +idle +([0-9.]+) %
idle/ZB-H1|^4 stages, 8 micro-batches, zb-h1 +idle +([0-9.]+) %
idle/ZB-V|^4 stages, 8 micro-batches, zb-v +idle +([0-9.]+) %
PATTERNS
}

# These judge and record by themselves.
predict() {
  python3 bench/predict.py build/molen --record >"$log/predict.txt" || finding "predictions: see $log/predict.txt"
  python3 bench/predict.py build/molen --layouts --record >"$log/predict-layouts.txt" || finding "predictions of layouts: see $log/predict-layouts.txt"
}

bench() { bench/run.sh >"$log/bench.txt" 2>&1 || finding "benchmarks: see $log/bench.txt"; }

for part in "${parts[@]}"; do
  case $part in
    fuzz | tsan | ubsan | optimised | tidy | headers | verify | static | waits | hang | slurm | load | overlap | mutate | exhaustive | predict | bench) "$part" ;;
    *) echo "nightly: no part $part (fuzz, tsan, ubsan, optimised, tidy, headers, verify, static, waits, hang, slurm, load, overlap, mutate, exhaustive, predict, bench)" >&2; exit 2 ;;
  esac
done
tools/results.py page
[ $# -gt 0 ] || tools/stale_records.py || finding "records that are too old"
[ ${#findings[@]} = 0 ] || { printf 'nightly: %s\n' "${findings[@]}" >&2; exit 1; }
