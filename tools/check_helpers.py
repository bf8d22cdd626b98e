#!/usr/bin/env python3
"""Rejects a function, type or constant of one name in the anonymous namespaces of two files of a module. A joined build (cmake/MolenModule.cmake)
compiles such files as one: of two functions each would be an overload beside the other, and a call could bind to the other file's; of two types or
constants the second does not compile, as soon as a file more or less brings the two together. A `using` of the same type may stand in both. Modules
with REPEATS_NAMES compile each file alone and are left out."""
import collections
import pathlib
import re
import sys

# The first line of a definition that begins at the left margin: what it returns, its name, its parameters.
FUNCTION = re.compile(r"(?!return\b|static_assert\b|using\b|struct\b|class\b|enum\b|union\b|TEST|RC_|INSTANTIATE)[A-Za-z_\[][\w:<>,&*\s\[\]().]*?[\s&*](\w+)\(")
TYPE = re.compile(r"(?:template <.*> )?(?:struct|class|union|enum(?: class| struct)?) (\w+)")
ALIAS = re.compile(r"(?:template <.*> )?using (\w+) = |typedef .*\b(\w+);")
# Matches each constant of a statement, which may declare several.
CONSTANT = re.compile(r"(?<![\w.:])(k[A-Z]\w*)(?=\s*(?:\[[^\]]*\]\s*)*(?:=(?!=)|\{|;))")
DECLARES = re.compile(r"(?:inline |static |thread_local )*(?:constexpr|constinit|const)\b")
OPENS = re.compile(r"namespace(?: [\w:]+)? \{")


def statement(lines, first):
    """The text from a line to the one that ends its statement."""
    text = ""
    for line in lines[first:]:
        text += " " + line.split("//")[0].strip()
        if text.endswith(";"):
            break
    return text.strip()


def helpers(path):
    """Names in the file's anonymous namespaces; with that of a `using` comes what it stands for, with others nothing."""
    found, inside = {}, False
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if OPENS.match(line):
            inside = line == "namespace {"
        elif line.startswith("}  // namespace"):
            inside = False
        elif not inside:
            continue
        elif m := ALIAS.match(line):
            found[m[1] or m[2]] = statement(lines, number)
        elif m := TYPE.match(line) or FUNCTION.match(line):
            found[m[1]] = None
        elif DECLARES.match(line):
            found |= dict.fromkeys(CONSTANT.findall(statement(lines, number)))
    return found


def check(root: pathlib.Path) -> list[str]:
    wrong = []
    for lists in sorted((root / "src").glob("*/CMakeLists.txt")):
        if "REPEATS_NAMES" in lists.read_text():
            continue
        # A module's library and its tests are joined each for itself.
        owners = {False: collections.defaultdict(dict), True: collections.defaultdict(dict)}
        for path in sorted(lists.parent.rglob("*.cpp")):
            for name, alias in helpers(path).items():
                owners[path.stem.endswith("_test")][name][path.relative_to(root).as_posix()] = alias
        for by_name in owners.values():
            for name, files in sorted(by_name.items()):
                first, *others = files
                if others and (None in files.values() or len(set(files.values())) > 1):
                    wrong.append(f"{first}: {name} has the name of a helper in {', '.join(others)}; rename one, or declare one of them in a header for both")
    return wrong


if __name__ == "__main__":
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "helpers: ok")
    sys.exit(1 if problems else 0)
