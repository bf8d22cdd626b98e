#!/usr/bin/env python3
"""Each header compiles alone, with the flags of a source of its folder (compile_commands.json of the release build).

ATen, which takes seconds to read, comes precompiled into headers that bring it themselves, and into no others.
A header that was checked and has not changed since, nor anything it includes, is not compiled again (build/headers)."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
STAMPS = ROOT / "build" / "headers"
PRECOMPILED = BUILD / "CMakeFiles" / "molen_torch_pch.dir" / "cmake_pch.hxx"
BRINGS_ATEN = re.compile(r'^#include <(ATen|c10)/', re.M)


def flags_by_folder():
    """Compiler and flags, without output, precompiled header and dependency files, of one source of each folder."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
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


def check(header, flags):
    name = header.relative_to(ROOT / "src")
    stamp = STAMPS / str(name).replace("/", "__")
    command = [*flags, "-fsyntax-only", "-x", "c++", "-"]
    listed = subprocess.run([*flags, "-MM", "-MG", "-x", "c++", "-"], input=f'#include "{name}"\n', text=True,
                            capture_output=True, cwd=BUILD)
    files = [f for f in listed.stdout.replace("\\\n", " ").split()[1:] if f != "-"]
    if PRECOMPILED.is_file() and any(BRINGS_ATEN.search((BUILD / f).read_text()) for f in files if (BUILD / f).is_file()):
        command[1:1] = ["-include", str(PRECOMPILED)]
    digest = hashlib.sha256(" ".join(command).encode())
    for file in sorted(files):
        path = BUILD / file
        digest.update(path.read_bytes() if path.is_file() else file.encode())
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return None
    result = subprocess.run(command, input=f'#include "{name}"\n', text=True, capture_output=True, cwd=BUILD)
    if result.returncode:
        return f"{name} does not compile alone:\n{result.stderr[:1500]}"
    stamp.write_text(digest.hexdigest())
    return None


def main():
    if not (BUILD / "compile_commands.json").is_file():
        sys.exit("check_headers: build first (make build)")
    STAMPS.mkdir(parents=True, exist_ok=True)
    folders = flags_by_folder()
    work = []
    for header in sorted((ROOT / "src").rglob("*.h")):
        folder = header.parent
        while folder not in folders and folder != ROOT:
            folder = folder.parent
        if folder == ROOT:
            sys.exit(f"check_headers: no source near {header.relative_to(ROOT)} gives its flags")
        if not header.name.endswith("_inl.h"):  # bodies for one instruction set each, included once
            work.append((header, folders[folder]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [f for f in pool.map(lambda w: check(*w), work) if f]
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"headers: {len(work)} compile alone" if not failures else f"headers: {len(failures)} of {len(work)} failed")
    sys.exit(1 if failures else 0)


main()
