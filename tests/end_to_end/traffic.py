#!/usr/bin/env python3
"""Compares the bytes that ranks send, as counted by `molen verify` and at the end of `molen train`, against the textbook's formulas.

usage: traffic.py MOLEN
"""
import json

from harness import finish, mpirun, ok, run, shards, work

shards()
RANKS = 2
# Every parameter is a multiple of 32 elements, so that units have no padding and both ranks own halves.
SIZES = [x for s in ("model.hidden=64", "model.ffn=96", "model.head_dim=16") for x in ("--set", s)]
UNITS = 4  # embedding, two layers, final norm with the head


def end_of(name):
    return [e for e in map(json.loads, (work / "runs" / name / "events.jsonl").read_text().splitlines()) if e["event"] == "stop"][-1]


def train(name, ranks, *sets, launcher=()):
    """The last line of a short run's events, its number of parameters, and what the run printed."""
    sets = [x for s in (*sets, f"run.name={name}", 'train.stop_after="3 steps"', 'train.validate_every="100 steps"') for x in ("--set", s)]
    said = run("train", "run.toml", *SIZES, *sets, *([] if launcher else ["--ranks", ranks]), launcher=launcher).stdout
    begun = json.loads((work / "runs" / name / "events.jsonl").read_text().splitlines()[0])
    return end_of(name), begun["parameters"], said


def textbook(traffic, parameters, width):
    """ZeRO-1 (Rajbhandari et al. 2020, section 7): gradients are scattered and parameters gathered, each (n-1)/n of all of them on the wire."""
    rows = {r["op"]: r for r in traffic}
    of = lambda op: (rows[op]["calls"], rows[op]["payload_bytes"], rows[op]["wire_bytes"])
    payload = width * parameters
    wire = payload * (RANKS - 1) // RANKS
    sums = rows.get("all_reduce", {"payload_bytes": None})
    return (all(r["axis"] == "dp" for r in traffic) and sorted(rows) == ["all_gather", "all_reduce", "reduce_scatter"]
            and of("reduce_scatter") == of("all_gather") == (UNITS, payload, wire)
            and sums["wire_bytes"] == 2 * (RANKS - 1) * sums["payload_bytes"] // RANKS and sums["payload_bytes"] < 64 * sums["calls"])


end, parameters, said = train("owned", RANKS, "parallel.zero=1")
ok("train, ZeRO-1 on threads: gradients and parameters once, half of them on the wire", parameters > 50_000 and textbook(end["traffic"], parameters, 4), (end, parameters))
ok("its communication, by axis", [r["axis"] for r in end["communication"]] == ["dp"] and all(r["seconds"] > 0 and 0 <= r["hidden"] <= 1 for r in end["communication"]), end)
hidden = end["communication"][0]["hidden"]
ok("and for people", f", {100 * hidden:.1f}% hidden" in said and "communication of rank 0 in a step: dp " in said, said)
if launcher := mpirun(RANKS):
    end, parameters, _ = train("mpi", RANKS, "parallel.zero=1", launcher=launcher)
    ok("train, ZeRO-1 under MPI: the same", textbook(end["traffic"], parameters, 4), (end, parameters))

# Axes of the program, though one stream carries both.
end, _, said = train("hybrid", 4, "parallel.sharding=HYBRID_SHARD", "parallel.data_shard=2")
axes = [r["axis"] for r in end["communication"]]
ok("groups and copies apart", {"dp_shard", "dp_replicate"} <= set(axes) and sorted(set(r["axis"] for r in end["traffic"])) == sorted(axes), end)
ok("and for people", all(f"{axis} " in said.split("communication of rank 0 in a step: ")[1] for axis in axes), said)
end, _, said = train("alone", 1)
ok("one rank sends nothing", end["traffic"] == end["communication"] == [] and "communication of rank" not in said, (end, said))

rows = json.loads(run("verify", "run.toml", *SIZES, "--ranks", RANKS, "--layouts", "ZERO1", "--steps", 2, "--format", "json").stdout)
owned = [r for r in rows if {t["axis"] for t in r["traffic"]} == {"dp"}]
ok("verify: traffic with every layout", all(r["same"] and r["traffic"] for r in rows), [r for r in rows if not r["traffic"]])
ok("verify, ZeRO-1: as the textbook says", {r["compute"] for r in owned} == {"fp64", "fp32"} and all(textbook(r["traffic"], parameters, {"fp64": 8, "fp32": 4}[r["compute"]]) for r in owned), owned[:1])
finish("traffic")
