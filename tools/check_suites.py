#!/usr/bin/env python3
"""Judges a run of ctest by what must have run: tests/suites.json names the suites of each preset, the least number of tests in each, and the skips that are allowed.

usage: check_suites.py PRESET [BUILD]    (BUILD: build/PRESET; there ctest, with --output-junit suites.xml, was the last one to run)
Prints how many tests ran and names each that was skipped. Exit status 1 where a suite is missing, has too few tests, or skips what it may not:
whatever tools/setup.sh installs is no reason to skip.
"""
import fnmatch
import json
import pathlib
import platform
import re
import sys
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
RAN = re.compile(r"^(?:\[=+\] (?=\d+ tests? from .* ran\.)|Ran )(\d+) tests? ", re.M)
CHECKS = re.compile(r"^(?:.+: (\d+) (?:checks passed|rows measure the effect)|(\d+) seeds replayed|communicator suite on (\d+) MPI ranks: ok)", re.M)
COLOURS = re.compile(r"\x1b\[[0-9;]*[mK]")  # of programs under mpirun, which gives them a terminal
OK = re.compile(r"^ok  ", re.M)  # These lines are counted where a script prints no sum.
SKIP = re.compile(r"^(?:\[  SKIPPED \] (\S+) \(\d+ ms\)|SKIPPED (.+?):)", re.M)


def suites_of(log, junit):
    """Tests and names of the skipped ones of each suite in a log of ctest; the log does not tell which suites were skipped as a whole, JUnit's form does."""
    skipped = {case.get("name") for case in ElementTree.fromstring(junit).iter("testcase") if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None}
    found = {}
    for block in re.split(r"^(?=\d+/\d+ Testing: )", COLOURS.sub("", log), flags=re.M):
        named = re.match(r"\d+/\d+ Testing: (\S+)\n", block)
        if not named:
            continue
        counts = RAN.findall(block) or ["".join(groups) for groups in CHECKS.findall(block)] or [n for n in [len(OK.findall(block))] if n]
        found[named[1]] = {"tests": int(counts[-1]) if counts else None, "skips": [a or b for a, b in SKIP.findall(block)], "skipped": named[1] in skipped}
    return found


def allowed(suite, test, rules):
    return any(fnmatch.fnmatch(suite, r["suite"]) and fnmatch.fnmatch(test, r["test"]) and platform.machine() in r.get("machines", [platform.machine()]) for r in rules)


def tests_of(name, suite, rules):
    """How many tests ran. Google counts skipped ones too; those that a rule names (not by "*") may be missing on some machines, and count."""
    named = [r for r in rules if r["test"] != "*"]
    return max(0, (suite["tests"] or 0) - sum(not allowed(name, test, named) for test in suite["skips"]))


def judge(found, least, rules):
    """Returns what is wrong, in sentences."""
    wrong = []
    for name, count in least.items():
        if name not in found:
            wrong.append(f"the suite {name} did not run")
        elif count is not None and tests_of(name, found[name], rules) < count:
            wrong.append(f"the suite {name} ran {tests_of(name, found[name], rules)} tests, where tests/suites.json has at least {count}")
    for name, suite in found.items():
        if suite["skipped"] and not suite["skips"]:
            wrong.append(f"the suite {name} was skipped as a whole and does not say what")
        wrong += [f"{name} skipped {test}, which tests/suites.json does not allow" for test in suite["skips"] if not allowed(name, test, rules)]
    return wrong


def main():
    preset = sys.argv[1]
    build = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / f"build/{preset}"
    data = json.loads((ROOT / "tests/suites.json").read_text())
    found = suites_of((build / "Testing/Temporary/LastTest.log").read_text(errors="replace"), (build / "suites.xml").read_text())
    rules = data["allowed_skips"]
    wrong = judge(found, data["least"][preset], rules)
    skipped = 0
    for name, suite in found.items():
        elsewhere = [test for test in suite["skips"] if not allowed(name, test, [r for r in rules if r["test"] != "*"]) and allowed(name, test, rules)]
        for test in set(suite["skips"]) - set(elsewhere):
            print(f"skipped: {name}: {test}")
            skipped += 1
        if elsewhere:
            print(f"{name} leaves {len(elsewhere)} tests to other suites")
    print(f"suites of {preset}: {len(found)}, with {sum(tests_of(n, s, rules) for n, s in found.items())} tests and checks, {skipped} skipped")
    for sentence in wrong:
        print(f"suites of {preset}: {sentence}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
