#!/usr/bin/env python3
"""Seeded mutation run: small faults are put into src, and each must be caught by a test that reaches it.

usage: mutate.py [--mutants N] [--seed N] [--modules base,data] [--since COMMIT] [--list] ...      (with the tree's own Python, which has libclang)

All mutants of a run go into one build (mutant schemata): each stands in the source beside what it replaces, and a variable of the environment chooses
which one is in force. So a file is compiled once, and a mutant costs its tests alone. A first run of every test says which mutants it
reaches and how long it takes; then each mutant meets the tests that reach it, those of its own module and the quick ones first, until one fails.

The tree is copied to build/mutants/tree and built there; --in-place uses this checkout, which must then be a throwaway one (it is not put back).
A run that was cut off goes on where it was (build/mutants/progress.jsonl) if sources, tests and arguments are the same; it says so. One that has ended begins anew.
Survivors are read by people: tests/mutants.json has the reason of each that no test can or need catch, and lists as open those that still ask for a test.
Exit status 1 where one survives that has no reason.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import mutants_find
import mutants_progress
import mutants_run

ROOT = pathlib.Path(__file__).resolve().parent.parent
REASONS = "tests/mutants.json"
# Programs of each module's own tests; after them come those of the modules above it.
TORCH_FREE = ["base", "arch", "mesh", "config", "cluster", "store", "energy", "program", "comm", "data", "checkpoint", "sim", "ledger", "actuate", "collect",
              "daemon", "policy", "manage", "plan", "tune", "serve", "slurm"]
TORCH = ["math", "optim", "model", "exec", "launch", "measure", "infer", "prove", "train"]
PROGRAM = ["apps"]  # its tests are the end-to-end scripts, which cost minutes for a mutant that survives
BY_SCRIPTS = ["launch", "measure", "infer", "prove", "train", *PROGRAM]  # modules whose mutants meet those scripts
LAUNCHED = ["comm_mpi_suite"]  # whole programs under mpirun
RUNTIME = r"""// Which mutant is in force (tools/mutate.py); made for one run.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace molen_mutants {
int active = -1;
unsigned char* reached = nullptr;

__attribute__((constructor(101))) static void choose() {
  if (const char* number = std::getenv("MOLEN_MUTANT")) active = std::atoi(number);
  const char* file = std::getenv("MOLEN_MUTANTS_REACHED");
  if (!file) return;
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* at = ::mmap(nullptr, COUNT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) reached = static_cast<unsigned char*>(at);
  ::close(fd);
}
}  // namespace molen_mutants
"""
# Once for each compilation: a joined build compiles several files as one.
PRELUDE = ("#ifndef MOLEN_MUTANTS\n#define MOLEN_MUTANTS\n#include <type_traits>\nnamespace molen_mutants { extern int active; extern unsigned char* reached; "
           "inline bool on(int k) { if (reached) reached[k] = 1; return active == k; } }\n#endif\n#line 1\n")


def instrumented(source, chosen):
    """The text with all chosen mutants in it; line for line the same, so that the compiler's complaints name lines of the source."""
    data = source.encode()
    order = sorted(chosen, key=lambda m: (m["begin"], -m["end"], m["number"]))

    def render(begin, end, inner):
        out, at = b"", begin
        while inner:
            first = inner[0]
            within = [m for m in inner[1:] if m["end"] <= first["end"] and m["begin"] < first["end"]]
            inner = [m for m in inner[1:] if m not in within]
            inner = [m for m in inner if m["begin"] >= first["end"]]
            out += data[at:first["begin"]]
            out += first["before"].replace("@", str(first["number"])).encode() + render(first["begin"], first["end"], within) + first["after"].encode()
            at = first["end"]
        return out + data[at:end]

    for m in sorted({tuple(m["constant"]) for m in chosen if m.get("constant")}, reverse=True):
        data = data[:m[0]] + b"const    " + data[m[1]:]  # as long as "constexpr", which a value that may change is not
    return PRELUDE + render(0, len(data), order).decode()


def sample(candidates, count, seed):
    """So many of all, spread over the modules by the square root of how many each offers, and within a module over the kinds. Which ones goes by a hash of
    each and the seed: a change of the sources elsewhere leaves the choice as it is."""
    modules = collections.defaultdict(list)
    for c in sorted(candidates, key=lambda c: c["key"]):
        modules[c["file"].split("/")[1]].append(c)
    weight = sum(len(v) ** 0.5 for v in modules.values())
    chosen = []
    for module in sorted(modules):
        groups = collections.defaultdict(list)
        for c in modules[module]:
            groups[c["kind"]].append(c)
        for group in groups.values():
            group.sort(key=lambda c: hashlib.sha256(f"{seed} {c['key']}".encode()).digest())
        wanted = min(len(modules[module]), max(1, round(count * len(modules[module]) ** 0.5 / weight)))
        kinds = sorted(groups)
        while wanted > 0:
            for kind in kinds:
                if groups[kind] and wanted > 0:
                    chosen.append(groups[kind].pop())
                    wanted -= 1
    return chosen


def instrument(tree, chosen):
    files = collections.defaultdict(list)
    for number, m in enumerate(chosen):
        m["number"] = number
        files[m["file"]].append(m)
    for file, mutants in files.items():
        path = tree / file
        text = subprocess.run(["git", "-C", tree, "show", f":{file}"], capture_output=True, check=True).stdout.decode()
        made = instrumented(text, [m for m in mutants if not m.get("dropped")])
        if path.read_text() != made:
            path.write_text(made)
    runtime = tree / "src/base/molen_mutants.cpp"
    text = RUNTIME.replace("COUNT", str(max(4096, len(chosen))))
    if not runtime.exists() or runtime.read_text() != text:
        runtime.write_text(text)


def build(tree, chosen, targets, jobs):
    """Builds; mutants on lines that do not compile (a constant is needed there, an overload is missing) are dropped, and it is built again."""
    folder = tree / "build/release"
    if not (folder / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    for _ in range(12):
        r = subprocess.run(["ninja", "-C", folder, "-k", "0", "-j", str(jobs), *targets], capture_output=True, text=True)
        if r.returncode == 0:
            return
        lines = {(m[1], int(m[2])) for m in re.finditer(r"(src/\S+?\.cpp):(\d+)(?::\d+)?:.*(?:error|required from|note)", r.stdout)}
        bad = [m for m in chosen if not m.get("dropped") and any(m["file"] == f and m["line"] <= line <= m["last_line"] for f, line in lines)]
        errors = re.findall(r"(src/\S+?\.cpp):(\d+):\d+: error", r.stdout)
        exact = [m for m in bad if any(m["file"] == f and m["line"] <= int(line) <= m["last_line"] for f, line in errors)]
        for m in exact or bad:
            m["dropped"] = True
        if not bad:
            sys.exit(f"mutate: does not build, and no mutant is near:\n{r.stdout[-3000:]}")
        print(f"mutate: {len(exact or bad)} mutants do not compile and are left out", flush=True)
        instrument(tree, chosen)
    sys.exit("mutate: still does not build")


def copied_tree():
    tree = ROOT / "build/mutants/tree"
    tree.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    for gone in {str(p.relative_to(tree)) for p in (tree / "src").rglob("*") if p.is_file() and p.name != "molen_mutants.cpp"} - set(files):
        (tree / gone).unlink()  # what has moved since the tree was copied would still be compiled
    for name in filter(None, files):
        here, there = ROOT / name, tree / name
        if here.is_file() and not (there.is_file() and there.read_bytes() == here.read_bytes()):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, there)
    if not (tree / ".venv").exists() and (ROOT / ".venv").exists():
        (tree / ".venv").symlink_to(ROOT / ".venv")
    subprocess.run(["git", "init", "-q", tree], check=True)
    subprocess.run(["git", "-C", tree, "add", "-A"], check=True)
    return tree


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mutants", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--modules", default=",".join(TORCH_FREE + TORCH + PROGRAM))
    p.add_argument("--tests", help="modules whose tests run, and end-to-end scripts by name (default: those of --modules, with it the communicator's suite under mpirun; scripts for launch and what is above it)")
    p.add_argument("--since", help="only files that changed since this commit")
    p.add_argument("--in-place", action="store_true")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--budget", type=float, default=30.0, help="seconds of tests that a mutant may cost")
    p.add_argument("--again", help="only what survived in this earlier --output of the same seed, count and sources; tests that it has measured are not measured again")
    p.add_argument("--list", action="store_true", help="only lists the mutants")
    p.add_argument("--output", default="build/mutants/result.json")
    return p.parse_args()


def report(result, output):
    ran = [m for m in result["mutants"] if m["outcome"] != "dropped"]
    caught = [m for m in ran if m["outcome"].startswith("caught")]
    reasons = {r["key"]: r["reason"] for r in json.loads((ROOT / REASONS).read_text())["survivors"]} if (ROOT / REASONS).exists() else {}
    survivors = [m for m in ran if m not in caught]
    new = [m for m in survivors if m["key"] not in reasons]
    for m in survivors:
        print(f"{m['file']}:{m['line']}: {m['kind']}: {m['old']}  ->  {m['new']}: {m['outcome']}" + (f" ({reasons[m['key']]})" if m["key"] in reasons else ""))
    for module in sorted({m["file"].split("/")[1] for m in ran}):
        own = [m for m in ran if m["file"].split("/")[1] == module]
        print(f"{module:<12}{sum(m in caught for m in own):>5} of {len(own)} caught")
    result["caught"], result["made"] = len(caught), len(ran)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"mutants: {len(ran)} made (seed {result['seed']}), {len(caught)} caught ({100 * len(caught) / max(1, len(ran)):.1f}%), {len(survivors) - len(new)} survive for a reason that is written, {len(new)} without one")
    return 1 if new else 0


def main():
    a = arguments()
    modules = a.modules.split(",")
    tree = ROOT if a.in_place else copied_tree()
    if a.in_place:  # what an earlier run has put in
        subprocess.run(["git", "-C", ROOT, "checkout", "-q", "--", "src"], check=True)
    release = ROOT / "build/release"
    if not (release / "compile_commands.json").is_file():
        sys.exit("mutate: build first (make build)")
    only = None
    if a.since:
        only = set(subprocess.run(["git", "-C", ROOT, "diff", "--name-only", a.since, "--", "src"], capture_output=True, text=True, check=True).stdout.split())
    candidates = mutants_find.find(ROOT, release, modules, only, a.jobs)
    chosen = sample(candidates, a.mutants, a.seed)
    print(f"mutate: {len(candidates)} candidates in {len({c['file'] for c in candidates})} files, {len(chosen)} chosen", flush=True)
    if a.list:
        for m in chosen:
            print(f"{m['file']}:{m['line']}: {m['kind']}: {m['old']}  ->  {m['new']}")
        return 0
    instrument(tree, chosen)
    asked = a.tests.split(",") if a.tests else modules + (LAUNCHED if "comm" in modules else [])
    tests = [m for m in asked if m not in PROGRAM] + (mutants_run.SCRIPTS if set(asked) & set(BY_SCRIPTS) else [])
    build(tree, chosen, sorted({mutants_run.target_of(t) for t in tests}), a.jobs)
    caught = {m["key"]: m["outcome"] for m in json.loads(pathlib.Path(a.again).read_text())["mutants"] if m["outcome"].startswith("caught")} if a.again else {}
    left = [m for m in chosen if not m.get("dropped") and m["key"] not in caught]
    measurement = mutants_progress.identity_of(tree, [m for m in chosen if not m.get("dropped")], tests, None)
    progress = mutants_progress.Progress(ROOT / "build/mutants/progress.jsonl", mutants_progress.identity_of(tree, left, tests, a.budget), measurement, bool(a.again))
    outcomes = {m["number"]: caught[m["key"]] for m in chosen if m["key"] in caught} | mutants_run.run(tree, left, tests, a.jobs, a.budget, progress)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    mutants = [{k: m[k] for k in ("key", "file", "line", "kind", "old", "new")} | {"outcome": outcomes.get(m["number"], "dropped")} for m in chosen]
    status = report({"commit": commit, "seed": a.seed, "candidates": len(candidates), "mutants": mutants}, ROOT / a.output)
    progress.finish()
    return status


if __name__ == "__main__":
    sys.exit(main())
