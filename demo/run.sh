#!/usr/bin/env bash
# The main job, end to end, on two cores: text and licences, tokenizer, shards, two MPI ranks, a stop in the middle, resume, evaluation,
# text in two languages, Hugging Face export, report. Run again, it reuses what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
molen=build/molen
work=demo/out
run=$work/runs/demo
mkdir -p "$work"
step() { printf '\n== %s\n' "$1"; }

ranks=()
if command -v mpirun >/dev/null && $molen doctor --format json | grep -q '"mpi": true'; then
  # Two ranks on two cores; each also has a communication thread, so ranks are not bound to a core.
  ranks=(mpirun -n 2 --bind-to none --oversubscribe)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  world=2 communicator=mpi
else
  echo "no MPI here: training on one rank"
  world=1 communicator=self
fi

step "1. Dutch and English text with its licences, from Debian packages"
$molen data fetch demo --output "$work/fetch"

step "2. A byte-level BPE tokenizer of 16,384 entries, and token shards with their manifest"
$molen data prepare "$work/fetch" --output "$work/data" >"$work/prepare.txt"
if [ -f "$work/tokenizer.json" ]; then
  echo "tokenizer: $work/tokenizer.json reused"
else
  $molen tokenizer train "$work"/data/text/train/*.jsonl --vocabulary 16384 --output "$work/tokenizer.json"
fi
$molen data prepare "$work/fetch" --output "$work/data" --tokenizer "$work/tokenizer.json"
$molen data verify "$work/data" --tokenizer "$work/tokenizer.json"

step "3. What this machine can do (calibration), and what the run will take"
simulate=($molen simulate demo/config.toml --set math.threads=1 --ranks $world --cluster "$work/calibration.json" --communicator $communicator)
# One that another version wrote, or that was measured with other ranks, is of no use: measure again.
if [ -f "$work/calibration.json" ] && { ! said=$("${simulate[@]}" 2>&1) || grep -q '^not all of this was measured' <<<"$said"; }; then
  echo "calibration: not reused: $(grep -m 1 -e '^not all of this' -e '^molen: ' <<<"$said" | sed 's/^molen: //')"
  rm "$work/calibration.json"
fi
if [ -f "$work/calibration.json" ]; then
  echo "calibration: $work/calibration.json reused"
elif ! "${ranks[@]}" $molen calibrate --output "$work/calibration.json" >"$work/calibrate.txt" 2>&1; then
  cat "$work/calibrate.txt" >&2
  exit 1
else
  grep '^calibrated' "$work/calibrate.txt"
fi
"${simulate[@]}"

step "4. Training, stopped in the middle"
train=("${ranks[@]}" $molen train demo/config.toml --cluster "$work/calibration.json")
if [ -d "$run/checkpoints" ]; then
  echo "$run: reused, $(ls "$run/checkpoints" | tail -1) is there"
else
  "${train[@]}" --set 'train.stop_after="300 steps"'
fi

step "5. Resuming to the end"
"${train[@]}"

step "6. Bits per byte on held-out text, beside byte n-gram models of the same training text"
$molen data baseline "$work/data" --format json >"$work/baseline.json"
python3 demo/bits.py "$work/baseline.json" "$run/events.jsonl"

step "7. What it writes"
for prompt in "Om een bestand te openen" "To open a file"; do
  $molen generate "$run" --prompt "$prompt" --max-tokens 60 --temperature 0.7 --top-k 40 --seed 1
  echo "--"
done

step "8. A Hugging Face directory, and the report"
if [ "$work/export" -nt "$run/checkpoints" ]; then
  echo "$work/export: reused"
else
  rm -rf "$work/export"
  $molen checkpoint export "$run" "$work/export"
fi
$molen report "$run"

cat <<EOF

== Done. Where everything is
  text, licences     $work/fetch, $work/data (molen data inspect $work/data)
  run                $run: metrics.jsonl, events.jsonl, program.txt, tensorboard/, checkpoints/
  report             $run/report.html
  Hugging Face form  $work/export
What to try next
  $molen generate $run --prompt "De opdracht" --max-tokens 100
  $molen program $run | less         the step program that ran
  $molen train demo/config.toml --set run.name=gpt --set model.preset=gpt2 --set model.layers=4 --dry-run
  $molen config reference
EOF
