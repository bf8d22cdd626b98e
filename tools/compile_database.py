#!/usr/bin/env python3
"""compile_database.py BUILD: the compile commands of a build, one for each source file, on the standard output.

A unity build compiles files that include several sources, so its compile_commands.json names none of the sources. clang-tidy, clangd
and the tools here need a command for each: that of the file that includes it. The printed commands are for clang's tools, which cannot
read the precompiled header of another compiler, so a command names the header that it was made of. They also refuse some C++20 within
OpenMP, so no command has -fopenmp, and OpenMP's pragmas are ignored."""
import json
import pathlib
import re
import sys


def entries(build):
    """Entries of compile_commands.json with `first`: nothing is compiled before this source in its translation unit."""
    found = []
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        file = entry["file"]
        included = re.findall(r'^#include "(.+)"$', pathlib.Path(file).read_text(), re.M) if re.search(r"/Unity/unity_\d+_cxx\.cxx$", file) else [file]
        found += [entry | {"file": source, "command": entry["command"].replace(file, source), "first": k == 0} for k, source in enumerate(included)]
    return found


def for_clang(command):
    header = lambda made: re.search(r'^#include "(.+)"$', pathlib.Path(made).read_text(), re.M)[1]
    command = re.sub(r"(-include) (\S+/cmake_pch\.hxx)", lambda m: f"{m[1]} {header(m[2])}", command)
    return command.replace(" -fopenmp", "")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    plain = [{"directory": e["directory"], "file": e["file"], "command": for_clang(e["command"])} for e in entries(sys.argv[1])]
    print(json.dumps(plain, indent=1))
