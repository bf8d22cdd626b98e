#!/usr/bin/env python3
"""Rejects an include that points up or sideways in the module order, a vendor header outside its folder, ATen outside the
modules that may use it, and code that reads the setting of a program though its rules follow from the program itself. ARCHITECTURE.md explains the layers."""
import pathlib
import re
import sys

LEVELS = [
    {"base"},
    {"arch", "mesh", "config", "cluster", "store", "energy", "math"},
    {"program", "comm", "collect", "data", "checkpoint", "optim", "actuate"},
    {"model", "daemon"},
    {"sim", "exec", "ledger", "policy", "manage"},
    {"plan", "slurm"},
    {"tune"},
    {"launch"},
    {"measure", "infer", "prove", "serve"},
    {"train"},
    {"apps"},
]
LEVEL = {m: i for i, modules in enumerate(LEVELS) for m in modules}
ATEN_MODULES = {"math", "model", "optim", "exec", "launch", "measure", "infer", "prove", "train"}
# The program molen is free of ATen: of these modules, its command line sees only the options of commands. molen-compute has the rest.
COMPUTES = "apps/compute/"
VENDOR = {  # header pattern -> folder that may include it
    r"mpi\.h": "comm/mpi",
    r"nccl\.h": "comm/nccl",
    r"nvml\.h": "energy/nvml",
    r"nlopt\.hpp?": "tune",
    r"sqlite3\.h": "collect/sqlite",
    r"libpq-fe\.h": "collect/postgres",
    r"curl/": "serve/http",
    r"slurm/(spank|slurm)\.h": "slurm/plugin",
}
# Folders whose rules follow from ops, buffers and the grid. Functions that take a setting's traits for the builder are apart from the others.
WITHOUT_SETTING = ("exec", "program/parts", "program/types", "program/values", "program/verify")
OF_SETTING = "program/values/of_setting"
SETTING = re.compile(r"\bSetting\b|(\.|->)setting\b")
# Headers that these folders must not include, so that they see no function that reads a setting.
KNOWS_SETTING = re.compile(r"program/(build|provenance)/|" + OF_SETTING)
# The builder's table of operands. These two have rules of their own, so that a mistake in it is refused.
WITHOUT_SIGNATURE = ("program/types", "program/verify")
# The builder's costs, of which the verifier has rules of its own for the same reason.
COSTS = re.compile(r"program/values/(costs|epilogues|payload)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def path_in_tree(src: pathlib.Path, file: pathlib.Path, target: str) -> str:
    """Returns the file that an include names, relative to src/ if it lies there. It is looked for beside the including file, then in src/, as the compiler does."""
    named = [(folder / target).resolve() for folder in (file.parent, src)]
    inside = [n for n in named if src.resolve() in n.parents]
    there = [n for n in inside if n.exists()] or (inside if ".." in target.split("/") else [])
    return str(there[0].relative_to(src.resolve())) if there else target


def check(root: pathlib.Path) -> list[str]:
    wrong = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        relative = path.relative_to(root / "src")
        module = relative.parts[0]
        if module not in LEVEL:
            wrong.append(f"{path}: module '{module}' has no level")
            continue
        is_test = path.stem.endswith("_test")
        folder_without = next((f for f in WITHOUT_SETTING if str(relative).startswith(f + "/")), None) if not is_test and not str(relative).startswith(OF_SETTING) else None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if folder_without and SETTING.search(line):
                wrong.append(f"{path.relative_to(root)}:{number}: {folder_without} reads the setting; what it needs is in an op's attributes and operands, or in the program's buffers and grid")
            found = INCLUDE.match(line)
            if not found:
                continue
            target = path_in_tree(root / "src", path, found.group(1))
            where = f"{path.relative_to(root)}:{number}"
            other = target.split("/")[0]
            if other in LEVEL and "/" in target and other != module and LEVEL[other] >= LEVEL[module]:
                wrong.append(f"{where}: {module} (level {LEVEL[module]}) includes {other} (level {LEVEL[other]})")
            if folder_without and KNOWS_SETTING.match(target):
                wrong.append(f"{where}: {folder_without} includes {target}, which knows the setting")
            if folder_without in WITHOUT_SIGNATURE and target == "program/values/signature.h":
                wrong.append(f"{where}: {folder_without} includes {target}, which the builder takes operands from; it has rules of its own")
            if folder_without == "program/verify" and COSTS.match(target):
                wrong.append(f"{where}: {folder_without} includes {target}, which the builder takes costs from; it has rules of its own")
            if re.match(r"(ATen|c10|torch)/", target) and module not in ATEN_MODULES:
                wrong.append(f"{where}: ATen belongs to {sorted(ATEN_MODULES)}")
            if module == "apps" and other in ATEN_MODULES and not str(relative).startswith(COMPUTES) and not target.endswith("/options.h"):
                wrong.append(f"{where}: {target} belongs to src/{COMPUTES}, because the program molen is free of libtorch")
            for pattern, folder in VENDOR.items():
                if re.fullmatch(pattern, target) and not str(relative).startswith(folder) and not is_test:
                    wrong.append(f"{where}: {target} belongs to src/{folder}")
    return wrong


if __name__ == "__main__":
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "layers: ok")
    sys.exit(1 if problems else 0)
