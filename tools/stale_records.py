#!/usr/bin/env python3
"""Names the metrics of docs/results whose latest record is older than the code that it covers, and fails where one is older than it may be.

usage: stale_records.py [--warn]

docs/results/metrics.json says of each metric which paths it covers and how many commits may touch those (`stale_after`). Exit status 1 too where a
metric has no record, where git does not answer, and where a record's commit is not in the history. Outside of a git clone (a release's archive) nothing can be said.
--warn: what is too old is named, and is no failure. `make test` asks so, because the age of a record grows with every commit and is the fault of none;
`make nightly`, which measures again, fails.
"""
import subprocess
import sys

import results

ROOT = results.ROOT


def git(*args):
    r = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"records: git {' '.join(args)}: {r.stderr.strip()}")
    return r.stdout


def age(commit, covers):
    """How many commits touch the covered paths since; None where the commit is not in the history."""
    known = subprocess.run(["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True, text=True)
    return int(git("rev-list", "--count", f"{commit}..HEAD", "--", *covers)) if known.returncode == 0 else None


def main():
    if not (ROOT / ".git").exists():
        print("records: not a git clone, so their age is unknown")
        return
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        print("records: a shallow clone, so their age is unknown")
        return
    latest = {r["metric"]: r for r in results.records()}
    ages = {}
    older, wrong, old = 0, [], []
    described = results.metrics()
    for name, metric in described.items():
        if name not in latest:
            continue
        commit = latest[name]["commit"].rstrip("+")
        key = (commit, *metric["covers"])
        if key not in ages:
            ages[key] = age(commit, metric["covers"])
        if ages[key] is None:
            wrong.append(f"{name}: its commit {commit} is not in the history")
        elif ages[key] > metric["stale_after"]:
            old.append(f"{name}: {ages[key]} commits touch {', '.join(metric['covers'])} since {commit}, {metric['stale_after']} may; measure again: {latest[name]['command']}")
        older += bool(ages[key])
    for sentence in wrong + old:
        print(f"records: {sentence}", file=sys.stderr)
    unmeasured = [name for name in described if name not in latest]
    print(f"records: {len(latest)} metrics, {older} older than the code they cover, {len(old)} too old; {len(unmeasured)} not measured yet")
    if unmeasured:
        print(f"records: not measured yet: {', '.join(unmeasured)}", file=sys.stderr)
    sys.exit(1 if wrong or ((old or unmeasured) and "--warn" not in sys.argv[1:]) else 0)


if __name__ == "__main__":
    main()
