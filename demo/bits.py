#!/usr/bin/env python3
"""The run's bits per byte beside those of byte n-gram models (Witten-Bell) of the same text. Fails above the trigram.

usage: bits.py BASELINE.json EVENTS.jsonl"""
import json
import sys

rows = json.load(open(sys.argv[1]))
validations = [e for e in map(json.loads, open(sys.argv[2])) if e.get("event") == "validation"]
if not validations:
    sys.exit(f"{sys.argv[2]}: no validation yet")
run = validations[-1]
print(f"{'model':<22}" + "".join(f"{language:>10}" for language in run["bits_per_byte"]))
worse = []
for order in sorted({r["order"] for r in rows}):
    bits = {r["language"]: r["bits_per_byte"] for r in rows if r["order"] == order}
    name = f"byte {order}-gram"
    print(f"{name:<22}" + "".join(f"{bits[language]:>10.3f}" for language in run["bits_per_byte"]))
    if order == 3:
        worse = [language for language, mine in run["bits_per_byte"].items() if mine >= bits[language]]
name = f"this run, step {run['step']}"
print(f"{name:<22}" + "".join(f"{bits:>10.3f}" for bits in run["bits_per_byte"].values()))
if worse:
    sys.exit(f"not below the trigram: {', '.join(worse)}")
print("below the trigram in every language")
