#!/usr/bin/env python3
"""Start of a run on many shards: seconds and resident memory of each rank until training could begin.

usage: startup.py MOLEN [--shards N] [--tokens N] [--folder DIR] [--record]

Makes N synthetic shards with a manifest (kept in DIR and used again), and starts `molen train --dry-run` on two MPI ranks:
with a cache that knows nothing of the shards, and again; and on a data set of one shard, which is what everything else takes.
--record adds the seconds and the memory of the slowest and of the largest rank to docs/results/records.jsonl, and judges them.
"""
import argparse
import hashlib
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import results  # noqa: E402

DOCUMENT = 64  # tokens


def make(folder, shards, tokens):
    if (folder / "manifest.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    documents = tokens // DOCUMENT
    lengths = struct.pack(f"<{documents}i", *[DOCUMENT] * documents)
    pointers = struct.pack(f"<{documents}q", *range(0, documents * DOCUMENT * 2, DOCUMENT * 2))
    marks = struct.pack(f"<{documents + 1}q", *range(documents + 1))
    idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1) + lengths + pointers + marks
    old = time.time() - 3600
    records = []
    for i in range(shards):
        document = struct.pack(f"<{DOCUMENT}H", *[1 + (i + k) % 200 for k in range(DOCUMENT - 1)], 0)
        name = f"shard-{i:06d}"
        files = {}
        for ending, content in (("bin", document * documents), ("idx", idx)):
            path = folder / f"{name}.{ending}"
            path.write_bytes(content)
            os.utime(path, (old, old))
            files[ending] = {"path": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        records.append({"name": name, "source": "bench", "package": "", "version": "1",
                        "licence": {"spdx": "CC0-1.0", "declared": "CC0", "evidence": "", "evidence_sha256": "", "rule": "given by the user"},
                        "language": "nl", "documents": documents, "tokens": documents * DOCUMENT, "text_bytes": documents * DOCUMENT * 4,
                        "bin": files["bin"], "idx": files["idx"]})
    manifest = {"format": "molen-shards", "version": 1, "split": "train",
                "tokenizer": {"fingerprint": "bench", "vocabulary": 256, "end_of_text": 0}, "shards": records}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def start(molen, folder, cache):
    """Seconds and MiB of each of two ranks."""
    command = [molen, "train", "--model", "llama-tiny", "--set", f'data.train=[{{path="{folder}"}}]', "--set", "data.sequence_length=64", "--set", "device.kind=cpu",
               "--set", "batch.global=2", "--set", "batch.micro=1", "--set", 'train.until="2 steps"', "--set", 'schedule.warmup="1 steps"', "--dry-run"]
    launch = ["mpirun", "-n", "2", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    done = subprocess.run([*launch, sys.executable, __file__, "--as-rank", *command], capture_output=True, text=True,
                          env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    ranks = sorted(json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("RANK "))
    if done.returncode or len(ranks) != 2:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [(seconds, mib) for _, seconds, mib in ranks]


def as_rank(command):
    begin = time.monotonic()
    status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print("RANK " + json.dumps([int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)), time.monotonic() - begin, used]), flush=True)
    sys.exit(status)


def main():
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(sys.argv[2:])
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("molen")
    parser.add_argument("--shards", type=int, default=20000)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    o = parser.parse_args()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="molen-startup-"))
    folder = o.folder or scratch / "data"
    try:
        make(folder / "many", o.shards, o.tokens)
        make(folder / "one", 1, o.tokens)
        rows = [("one shard", start(o.molen, folder / "one", scratch / "cache"))]
        for name in ("first start", "second start"):
            rows.append((f"{o.shards} shards, {name}", start(o.molen, folder / "many", scratch / "cache")))
        print(f"{'':32} {'rank 0':>18} {'rank 1':>18}")
        for name, ranks in rows:
            print(f"{name:32} " + " ".join(f"{seconds:6.2f} s {mib:5.0f} MiB" for seconds, mib in ranks))
        if o.record:
            (_, first), (_, later) = rows[1:]
            measured = [("startup/first", max(s for s, _ in first), None), ("startup/later", max(s for s, _ in later), None),
                        ("startup/memory", max(m for _, m in first + later), None)]
            if not results.report(measured, f"bench/startup.py build/molen --shards {o.shards} --record", True):
                sys.exit(1)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
