#!/usr/bin/env python3
"""clang-tidy on every source of src but tests and src/math. .clang-tidy says which checks run.

usage: tidy.py BUILD [--jobs N]

clang-tidy reads the files that the compiler is given. Such a file may include several sources, whose headers are then read once. Its path contains
"UnifiedSource", because clang's analyzer follows what such a file includes only then. src/math is left out: clang does not read GCC's vector extensions, in
which its kernels are written. Nor does it read GCC's omp.h, in whose place stand the functions that src uses. A file that clang-tidy cannot read is a finding.

A file without a finding is remembered (build/nightly/tidy-clean) by the contents of all that it includes, the checks, and clang-tidy's version: a run that was
cut off goes on where it was, and a change costs the files that include it. Sources that the build does not compile are read each time. Prints how many sources are clean and how many files were read now. Exit status 1
where something was found: findings by check on the standard output, all lines in build/nightly/tidy.txt.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shlex
import subprocess
import sys

import compile_database

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOG = ROOT / "build/nightly"
FINDING = re.compile(r"^(.+?)(?::\d+:\d+)?: (?:warning|error): .*(\[[a-z.,A-Z0-9-]+\])$|^error: .*(\[[a-z.,A-Z0-9-]+\])$")


def sources():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "src"], capture_output=True, text=True, check=True).stdout.split()
    return [f for f in listed if f.endswith(".cpp") and not f.endswith("_test.cpp") and not f.startswith("src/math/")]


def commands(build):
    """{file that clang-tidy reads: arguments of its compiler}: the compiler's own files, and then the sources that this build does not compile."""
    entries = [e for e in compile_database.units(build) if not e["file"].startswith(f"{ROOT}/src/math/")]
    alone = {e["file"] for e in compile_database.entries(build)}
    found = {e["file"]: (e["directory"], shlex.split(compile_database.for_clang(e["command"]))) for e in entries}
    return found | {f"{ROOT}/{s}": None for s in sources() if f"{ROOT}/{s}" not in alone}


def key_of(file, command, checks):
    """A digest of all that clang-tidy would read; None where the compiler cannot tell."""
    if command is None:
        return None
    folder, words = command
    words = [w for before, w in zip(["", *words], words) if w not in ("-o", "-c") and before != "-o"]
    listed = subprocess.run([*words, "-M"], cwd=folder, capture_output=True, text=True)
    if listed.returncode:
        return None
    digest = hashlib.sha256("\0".join([checks, folder, *words]).encode())
    for path in [file, *listed.stdout.replace("\\\n", " ").split()[1:]]:
        digest.update(path.encode() + b"\0" + pathlib.Path(folder, path).read_bytes())
    return digest.hexdigest()


def read(file, database, headers):
    """The lines that clang-tidy prints of one file."""
    done = subprocess.run(["clang-tidy-16", "-p", database, "--quiet", f"--extra-arg=-idirafter{headers}", file], capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    return done.stdout.splitlines() + ([f"error: clang-tidy ended with status {done.returncode} at {file} [not-read]"] if done.returncode else [])


def own(line):
    """The check that a line names. The analyzer follows calls into the headers of libraries too; only what it finds in this tree counts."""
    m = FINDING.match(line)
    return m and (m[3] or (m[2] if m[1].startswith(f"{ROOT}/") else None))


def prepare(build):
    """The database of commands and the headers for clang, in LOG."""
    (LOG / "clang").mkdir(parents=True, exist_ok=True)
    (LOG / "tidy-clean").mkdir(exist_ok=True)
    link = LOG / "UnifiedSource"
    link.unlink(missing_ok=True)
    link.symlink_to(build)
    (LOG / "clang/omp.h").write_text('extern "C" { int omp_get_num_threads(); int omp_get_thread_num(); int omp_in_parallel(); void omp_set_num_threads(int); }\n')
    listed = subprocess.run([sys.executable, ROOT / "tools/compile_database.py", "--units", build], capture_output=True, text=True, check=True).stdout
    (LOG / "compile_commands.json").write_text(listed.replace(f"{build}/", f"{link}/"))
    return link


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    a = p.parse_args()
    build = pathlib.Path(a.build).resolve()
    link = prepare(build)
    version = subprocess.run(["clang-tidy-16", "--version"], capture_output=True, text=True, check=True).stdout
    checks = version + (ROOT / ".clang-tidy").read_text() + pathlib.Path(__file__).read_text()

    def one(item):
        file, command = item
        key = key_of(file, command, checks)
        if key and (LOG / "tidy-clean" / key).exists():
            return False, []
        lines = read(file.replace(f"{build}/", f"{link}/"), LOG, LOG / "clang")
        if key and not any(map(own, lines)):
            (LOG / "tidy-clean" / key).touch()
        return True, lines

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        results = list(pool.map(one, commands(build).items()))
    lines = [line for _, of_file in results for line in of_file]
    (LOG / "tidy.txt").write_text("".join(line + "\n" for line in lines))
    found = collections.Counter(own(line) for line in set(lines) if own(line))
    if found:
        print("; ".join(f"{check} {count}" for check, count in found.most_common()))
        sys.exit(1)
    print(f"{len(sources())} {sum(now for now, _ in results)} of {len(results)}")


if __name__ == "__main__":
    main()
