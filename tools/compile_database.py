#!/usr/bin/env python3
"""compile_database.py [--units] BUILD: the compile commands of a build, one for each source file, on the standard output.

A unity build compiles files that include several sources, so its compile_commands.json names none of the sources. clang-tidy, clangd
and the tools here need a command for each: that of the file that includes it. The printed commands are for clang's tools, which cannot
read the precompiled header of another compiler, so a command names the header that it was made of. They also refuse some C++20 within
OpenMP, so no command has -fopenmp, and OpenMP's pragmas are ignored.

--units: one command for each file that the compiler is given and that is, or includes, a source of src/ other than a test."""
import json
import pathlib
import re
import sys


def compiled(build):
    """Each entry of compile_commands.json with the sources that the compiler reads for it."""
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        file = entry["file"]
        joined = re.search(r"/Unity/unity_\d+_cxx\.cxx$", file)
        yield entry, re.findall(r'^#include "(.+)"$', pathlib.Path(file).read_text(), re.M) if joined else [file]


def entries(build):
    """Entries of compile_commands.json with `first`: nothing is compiled before this source in its translation unit."""
    return [entry | {"file": source, "command": entry["command"].replace(entry["file"], source), "first": k == 0}
            for entry, sources in compiled(build) for k, source in enumerate(sources)]


def units(build):
    src = str(pathlib.Path(build).resolve().parents[1] / "src") + "/"
    return [entry for entry, sources in compiled(build) if any(s.startswith(src) and s.endswith(".cpp") and not s.endswith("_test.cpp") for s in sources)]


def for_clang(command):
    header = lambda made: re.search(r'^#include "(.+)"$', pathlib.Path(made).read_text(), re.M)[1]
    command = re.sub(r"(-include) (\S+/cmake_pch\.hxx)", lambda m: f"{m[1]} {header(m[2])}", command)
    return command.replace(" -fopenmp", "")


if __name__ == "__main__":
    folders = [a for a in sys.argv[1:] if a != "--units"]
    if len(folders) != 1 or folders[0].startswith("-"):
        sys.exit(__doc__)
    read = (units if "--units" in sys.argv else entries)(folders[0])
    if not read:
        sys.exit(f"compile_database.py: {folders[0]} compiles no source")
    plain = [{"directory": e["directory"], "file": e["file"], "command": for_clang(e["command"])} for e in read]
    print(json.dumps(plain, indent=1))
