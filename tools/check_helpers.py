#!/usr/bin/env python3
"""Rejects two functions of one name in the anonymous namespaces of two files of a module. A joined build (cmake/MolenModule.cmake) compiles such files as one:
each of the two would then be an overload beside the other, and a call could bind to the other file's. Modules with REPEATS_NAMES compile each file
alone and are left out."""
import collections
import pathlib
import re
import sys

# The first line of a definition that begins at the left margin: what it returns, its name, its parameters.
FUNCTION = re.compile(r"(?!return\b|static_assert\b|using\b|struct\b|class\b|enum\b|TEST|RC_|INSTANTIATE)[A-Za-z_\[][\w:<>,&*\s\[\]().]*?[\s&*](\w+)\(")
OPENS = re.compile(r"namespace(?: [\w:]+)? \{")


def helpers(path):
    """Names of the functions in the file's anonymous namespaces."""
    found, inside = set(), False
    for line in path.read_text().splitlines():
        if OPENS.match(line):
            inside = line == "namespace {"
        elif line.startswith("}  // namespace"):
            inside = False
        elif inside and (m := FUNCTION.match(line)):
            found.add(m[1])
    return found


def check(root: pathlib.Path) -> list[str]:
    wrong = []
    for lists in sorted((root / "src").glob("*/CMakeLists.txt")):
        if "REPEATS_NAMES" in lists.read_text():
            continue
        # A module's library and its tests are joined each for itself.
        owners = {False: collections.defaultdict(list), True: collections.defaultdict(list)}
        for path in sorted(lists.parent.rglob("*.cpp")):
            for name in helpers(path):
                owners[path.stem.endswith("_test")][name].append(path.relative_to(root).as_posix())
        for by_name in owners.values():
            wrong += [f"{files[0]}: {name}() has the name of a helper in {', '.join(files[1:])}; rename one, or declare one of them in a header for both"
                      for name, files in sorted(by_name.items()) if len(files) > 1]
    return wrong


if __name__ == "__main__":
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "helpers: ok")
    sys.exit(1 if problems else 0)
