#!/usr/bin/env python3
"""Each header compiles alone, with the flags of a source of its folder (compile_commands.json of the release build).

ATen takes seconds to read, and JSON, fmt and <filesystem> half a second each and more. A header that brings some of them gets exactly
what it and the headers that it includes bring of them precompiled, and nothing else, so that no missing include is hidden.
A header that was checked and has not changed since, nor anything it includes, is not compiled again (build/headers). Nor is one that a source without
precompiled headers includes before all else, for then the build has shown it."""
import collections
import concurrent.futures
import functools
import hashlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading

import compile_database

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
BUILD = ROOT / "build" / "release"
STAMPS = ROOT / "build" / "headers"
LEAST_USES = 3
MAKING = collections.defaultdict(threading.Lock)  # of each precompiled header
SLOW = re.compile(r'^#include <(?:(?:ATen|c10|nlohmann|fmt)/[^>]+|filesystem)>', re.M)


def flags_by_folder():
    """Compiler and flags, without output, precompiled header and dependency files, of one source of each folder."""
    found = {}
    for entry in compile_database.entries(BUILD):
        source = pathlib.Path(entry["file"])
        if ROOT / "src" not in source.parents or "cmake_pch" in source.name:
            continue
        words, kept, skip = shlex.split(entry["command"]), [], False
        for i, word in enumerate(words):
            if skip:
                skip = False
            elif word in ("-o", "-c", "-MF", "-MT", "-include"):
                skip = True
            elif word not in ("-MD", "-Winvalid-pch") and not word.endswith("ccache"):
                kept.append(word)
        # A test's flags are a superset of its module's.
        if source.parent not in found or source.name.endswith("_test.cpp"):
            found[source.parent] = kept
    return found


def shown_by_the_build():
    """Headers that stand first in a source of their name which has no precompiled header."""
    shown = set()
    for entry in compile_database.entries(BUILD):
        source = pathlib.Path(entry["file"])
        header = source.with_suffix(".h")
        if " -include " in entry["command"] or ROOT / "src" not in source.parents or not header.is_file() or not entry["first"]:
            continue
        first = re.search(r'^#include .*$', source.read_text(), re.M)
        if first and first[0] == f'#include "{header.relative_to(ROOT / "src")}"':
            shown.add(header)
    return shown


def for_libraries(folders):
    """The flags of each folder that a precompiled header of libraries is made with: without the macros that only some folders have, which
    the compiler otherwise demands of whoever uses it, and without directories of other libraries."""
    alike = {folder: tuple(f for f in flags if not re.match("-D|-O|-W|-isystem|/", f)) for folder, flags in folders.items()}
    shared = {key: set.intersection(*(set(folders[f]) for f in folders if alike[f] == key)) for key in alike.values()}
    return {folder: [folders[folder][0], *(f for f in folders[folder][1:] if f in shared[alike[folder]] and not re.match("-isystem|/", f))] for folder in folders}


def precompiled(headers, flags):
    """A precompiled header that includes these of SLOW, made where it is not there."""
    text = "".join(f"{line}\n" for line in sorted(headers))
    torch = [pathlib.Path(f.removeprefix("-idirafter")).parent / "version.py" for f in flags if f.startswith("-idirafter")]
    key = text + " ".join(flags) + "".join(f.read_text() for f in torch if f.is_file())
    file = STAMPS / f"slow-{hashlib.sha256(key.encode()).hexdigest()[:16]}.h"
    with MAKING[file]:
        if not file.with_suffix(".h.gch").is_file():
            file.write_text(text)
            made = subprocess.run([*flags, "-x", "c++-header", str(file), "-o", f"{file}.part"], text=True, capture_output=True, cwd=BUILD)
            if made.returncode:
                sys.exit(f"check_headers: {sorted(headers)} cannot be precompiled:\n{made.stderr[:1500]}")
            pathlib.Path(f"{file}.part").replace(file.with_suffix(".h.gch"))
    return file


@functools.cache
def includes(file):
    """Returns which files of ours a file includes, its lines of SLOW, and a digest of its text."""
    text = file.read_text()
    named = re.findall(r'^[ \t]*#[ \t]*include "([^"]+)"', text, re.M)
    places = [[p for p in (file.parent / name, ROOT / "src" / name, ROOT / name) if p.is_file()] for name in named]
    return {p[0].resolve() for p in places if p}, set(SLOW.findall(text)), hashlib.sha256(text.encode()).hexdigest()


def closure(header):
    """A header and all headers of ours that it brings."""
    found, left = set(), [header]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += includes(file)[0]
    return sorted(found)


def brought_by(header):
    """Lines of SLOW that a header and what it includes of ours have."""
    return frozenset().union(*(includes(file)[1] for file in closure(header)))


def weight(headers):
    return sum(10 if "ATen.h" in line else 3 if "ATen/core" in line or "nlohmann" in line else 1 for line in headers)


def check(header, flags, library_flags, ahead):
    """`ahead`: lines of SLOW that are precompiled for it."""
    name = header.relative_to(ROOT / "src")
    stamp = STAMPS / str(name).replace("/", "__")
    command = [*flags, "-fsyntax-only", "-x", "c++", "-"]
    digest = hashlib.sha256(" ".join([*command, *(f"{file} {includes(file)[2]}" for file in closure(header))]).encode())
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return None
    if ahead:
        command[1:1] = ["-include", str(precompiled(ahead, library_flags))]
    result = subprocess.run(command, input=f'#include "{name}"\n', text=True, capture_output=True, cwd=BUILD)
    if result.returncode:
        return f"{name} does not compile alone:\n{result.stderr[:1500]}"
    stamp.write_text(digest.hexdigest())
    return None


def main():
    if not (BUILD / "compile_commands.json").is_file():
        sys.exit("check_headers: build first (make build)")
    STAMPS.mkdir(parents=True, exist_ok=True)
    folders, shown = flags_by_folder(), shown_by_the_build()
    library_flags = for_libraries(folders)
    work = []
    for header in sorted((ROOT / "src").rglob("*.h")):
        folder = header.parent
        while folder not in folders and folder != ROOT:
            folder = folder.parent
        if folder == ROOT:
            sys.exit(f"check_headers: no source near {header.relative_to(ROOT)} gives its flags")
        if header not in shown and not header.name.endswith("_inl.h"):  # bodies for one instruction set each, included once
            work.append((header, folder))
    # Making one costs as much as two to three headers that read the text; what too few headers bring is left to a smaller one.
    uses = collections.Counter((brought_by(header), tuple(library_flags[folder])) for header, folder in work)
    made = [key for key, count in uses.items() if key[0] and count >= LEAST_USES]

    def ahead(header, folder):
        fit = [lines for lines, flags in made if flags == tuple(library_flags[folder]) and lines <= brought_by(header)]
        return max(fit, key=weight, default=None)

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failures = [f for f in pool.map(lambda w: check(w[0], folders[w[1]], library_flags[w[1]], ahead(*w)), work) if f]
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"headers: {len(work) + len(shown)} compile alone" if not failures else f"headers: {len(failures)} of {len(work)} failed")
    sys.exit(1 if failures else 0)


main()
