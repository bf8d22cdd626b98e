#!/usr/bin/env python3
"""Step time, memory and start-up time of molen beside PyTorch on the 56.4M Llama, alternating in one run.

usage: step.py MOLEN [--rounds N] [--output FILE.json] [--no-compile] [--no-ddp] [--record]
Prints a table; --output also writes the figures as JSON, --record adds them to docs/results/records.jsonl. Exit status 1 where a bound of
docs/results/metrics.json is missed.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import results as records  # noqa: E402

ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


# The preset llama-60m, as Hugging Face writes it.
SIZES = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}


def write_model(folder, sizes):
    """A Hugging Face directory with random weights. In a process of its own: torch is no import of this one, which times others."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes))
    make = ("import sys,json,torch; sys.path.insert(0,sys.argv[1]); import train_torch as t; from safetensors.torch import save_file; torch.manual_seed(0);"
            "c=json.load(open(sys.argv[2]+'/config.json')); n=t.Llama(c); [torch.nn.init.normal_(w,0,0.02) for w in n.parameters() if w.dim()>1];"
            "save_file({k:v.contiguous() for k,v in n.state_dict().items()}, sys.argv[2]+'/model.safetensors')")
    subprocess.run([sys.executable, "-c", make, str(HERE / "peers"), str(folder)], check=True)


def write_tokens(file, vocabulary, length):
    """4 batches of 4 sequences, each with the token that its last one predicts."""
    numpy.random.default_rng(0).integers(0, vocabulary, (4, 4, length), dtype=numpy.int32).tofile(file)


def last_json(command, cwd):
    """The last JSON line of the command's output. Start-up runs from here, before the process exists, to `ready_at_s` (all is
    built, no step yet) and to `first_step_at_s` (the first step has ended: arena touched, code compiled): the programs and this one read
    the system's monotonic clock."""
    launched = time.monotonic()
    r = subprocess.run(command, cwd=cwd, env=ENV, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{r.stdout}\n{r.stderr}")
    figures = json.loads([x for x in r.stdout.splitlines() if x.startswith("{")][-1])
    return figures | {"startup_s": figures["ready_at_s"] - launched, "first_step_s": figures["first_step_at_s"] - launched}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("molen")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--output")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--no-ddp", action="store_true")
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    molen = str(pathlib.Path(a.molen).resolve())
    with tempfile.TemporaryDirectory(prefix="molen_bench_") as folder:
        write_model(pathlib.Path(folder) / "model", SIZES)
        write_tokens(pathlib.Path(folder) / "tokens.bin", SIZES["vocab_size"], 513)
        torch_args = ["--model", "model", "--tokens", "tokens.bin", "--sequence", "512", "--global-batch", "4", "--steps", str(a.steps + 2), "--quiet"]
        peer = [sys.executable, str(HERE / "peers/train_torch.py"), *torch_args]
        ours = [molen, "bench", "--model", "llama-60m", "--set", "data.sequence_length=512", "--set", "batch.global=4", "--set", "device.kind=cpu", "--set", "precision.compute=fp32",
                "--steps", str(a.steps)]
        kinds = {"molen": [*ours, "--set", "batch.micro=4", "--set", "math.threads=2"], "eager": [*peer, "--micro", "4", "--threads", "2"]}
        if not a.no_compile:
            kinds["compile"] = [*peer, "--micro", "4", "--threads", "2", "--compile", "--warmup-steps", "3"]
        if not a.no_ddp:
            mpirun = ["mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe"]
            two = [*ours, "--set", "batch.micro=2", "--set", "math.threads=1"]
            kinds["molen, 2 ranks"] = [*mpirun, *two]
            kinds["molen, 2 ranks, ZeRO-1"] = [*mpirun, *two, "--set", "parallel.zero=1"]
            kinds["DDP gloo, 2 ranks"] = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", *peer[1:], "--micro", "2", "--threads", "1"]
        results = {k: [] for k in kinds}
        for _ in range(a.rounds):
            for name, command in kinds.items():
                results[name].append(last_json(command, folder))
        measured = table(results, a.output)
    command = "bench/step.py build/molen" + (f" --rounds {a.rounds}" if a.rounds != 3 else "") + (f" --steps {a.steps}" if a.steps != 6 else "")
    sys.exit(0 if records.report(measured, command, a.record) else 1)


def table(results, output):
    # 6 x 40.0M parameters (without the input embedding) x 2048 tokens, plus causal attention at half: as docs/formats say.
    gflop = statistics.median(r["gflops"] * r["median_s"] for r in results["molen"])
    gemm = max(r["gemm_gflops"] for r in results["molen"])
    rows = {}
    print(f"56.4M Llama, fp32, 4 x 512 tokens a step ({gflop:.0f} GFLOP); GEMM rate in this run {gemm:.0f} GFLOP/s (2 threads)")
    print(f"{'':<26}{'s/step':>8}{'min':>8}{'max':>8}{'GFLOP/s':>9}{'of GEMM':>9}{'peak RSS':>11}{'start-up':>10}{'1st step':>10}")
    for name, runs in results.items():
        s = statistics.median(r["median_s"] for r in runs)
        rows[name] = {"median_s": s, "min_s": min(r["min_s"] for r in runs), "max_s": max(r["max_s"] for r in runs), "gflops": gflop / s, "share_of_gemm": gflop / s / gemm,
                      "peak_rss_bytes": max(r["peak_rss_bytes"] for r in runs), "startup_s": statistics.median(r["startup_s"] for r in runs),
                      "first_step_s": statistics.median(r["first_step_s"] for r in runs), "rounds": [r["median_s"] for r in runs]}
        r = rows[name]
        print(f"{name:<26}{s:>8.3f}{r['min_s']:>8.3f}{r['max_s']:>8.3f}{r['gflops']:>9.0f}{100 * r['share_of_gemm']:>8.0f}%{r['peak_rss_bytes'] / 2**30:>8.2f} GiB{r['startup_s']:>8.2f} s{r['first_step_s']:>8.2f} s")
    ratios, measured = {}, []
    for metric, ours, theirs in (("eager", "molen", "eager"), ("compile", "molen", "compile"), ("ddp", "molen, 2 ranks", "DDP gloo, 2 ranks"), ("ddp_zero1", "molen, 2 ranks, ZeRO-1", "DDP gloo, 2 ranks")):
        if ours in rows and theirs in rows:
            per_round = [t / o for o, t in zip(rows[ours]["rounds"], rows[theirs]["rounds"])]
            ratios[f"{theirs} / {ours}"] = statistics.median(per_round)
            measured.append((f"step/{metric}", statistics.median(per_round), [min(per_round), max(per_round)]))
            print(f"{ours} is {statistics.median(per_round):.2f}x {theirs} (per round {', '.join(f'{x:.2f}' for x in per_round)}); memory {rows[ours]['peak_rss_bytes'] / rows[theirs]['peak_rss_bytes']:.2f}x")
    first = ", ".join(f"{name} {r['first_step_s']:.2f} s" for name, r in rows.items())
    print(f"from launch to the end of the first step: {first}")
    print(f"of which until ready to step: molen {rows['molen']['startup_s']:.2f} s (configuration, ranks, program built and verified), PyTorch {rows['eager']['startup_s']:.2f} s (import, model, weights, optimizer)")
    if output:
        pathlib.Path(output).write_text(json.dumps({"gemm_gflops": gemm, "rows": rows, "ratios": ratios, "startup_s": rows["molen"]["startup_s"], "first_step_s": rows["molen"]["first_step_s"]}, indent=1) + "\n")
    own = rows["molen"]
    measured += [("step/seconds", own["median_s"], [min(own["rounds"]), max(own["rounds"])]), ("step/gemm_share", 100 * own["share_of_gemm"], None)]
    return measured + [("step/memory", own["peak_rss_bytes"] / rows["eager"]["peak_rss_bytes"], None)]


if __name__ == "__main__":
    main()
