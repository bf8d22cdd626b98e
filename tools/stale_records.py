#!/usr/bin/env python3
"""Names the records in docs/results whose code has changed since they were made.

A record is a Markdown file with two lines, `commit: HASH` and `covers: PATH ...`. Prints; fails only where a record lacks them.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def git(*args):
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)


def field(text, name):
    found = re.search(rf"^{name}: (.+)$", text, re.MULTILINE)
    return found.group(1).split() if found else None


def state(path):
    """What to say of a record; None where it is fresh."""
    text = path.read_text()
    commit, covers = field(text, "commit"), field(text, "covers")
    if not commit or not covers:
        sys.exit(f"{path.relative_to(ROOT)}: a record needs the lines 'commit: HASH' and 'covers: PATH ...'")
    missing = [c for c in covers if not (ROOT / c).exists()]
    if missing:
        sys.exit(f"{path.relative_to(ROOT)}: covers {', '.join(missing)}, which is not in the tree")
    if git("cat-file", "-e", f"{commit[0]}^{{commit}}").returncode:
        return f"its commit {commit[0]} is not in this clone's history"
    changed = git("diff", "--name-only", commit[0], "HEAD", "--", *covers).stdout.split()
    return f"{len(changed)} covered files changed since {commit[0]}, e.g. {changed[0]}" if changed else None


def main():
    if git("rev-parse", "HEAD").returncode:
        print("records: not a git clone, so their age is unknown")
        return
    records = sorted((ROOT / "docs/results").glob("*.md"))
    old = [(r, s) for r in records if (s := state(r))]
    for record, why in old:
        print(f"older than the code: {record.relative_to(ROOT)}: {why}")
    print(f"records: {len(records)}, {len(old)} older than the code they cover")


if __name__ == "__main__":
    main()
