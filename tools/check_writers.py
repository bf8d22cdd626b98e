#!/usr/bin/env python3
"""Rejects what changes the file system without base/filesystem.h (docs/decisions/0008-files-checkpoints-owners.md): tests could not let
it fail or cut its power. Tests themselves may. What is no file, or cannot go through a call, is listed below with its reason; a line of
the list that no source needs is an error too."""
import pathlib
import re
import sys

DOOR = {"src/base/filesystem.cpp"}
ALLOWED = {  # (file, what): why
    ("src/actuate/guardian.cpp", "::write"): "into a pipe to the job",
    ("src/checkpoint/safetensors_io.cpp", "::sync_file_range"): "a hint that writing back may begin: it changes no content",
    ("src/daemon/server.cpp", "::fchmodat"): "lets all users connect to a socket",
    ("src/data/process.cpp", "::open"): "/dev/null, as a program's input",
    ("src/data/tree_guard.cpp", "::open"): "reads a file of the kernel, between fork and the end of the process",
    ("src/data/process.cpp", "::memfd_create"): "memory, as a program's input",
    ("src/data/process.cpp", "::write"): "into that memory",
    ("src/energy/machine.cpp", "::open"): "reads the kernel's own files",
    ("src/energy/ipmi.cpp", "::open"): "a device to which requests are sent",
    ("src/exec/arena.cpp", "::mmap"): "memory without a file",
    ("src/slurm/launch.cpp", "::mkdir"): "between fork and exec, in a plugin that cannot use base",
    ("src/slurm/launch.cpp", "::open"): "the same: a log that a program gets as its output",
    ("src/slurm/launch.cpp", "::write"): "the same: into a pipe, and a kernel's file",
    ("src/store/mapped_file.cpp", "::mmap"): "records are stores into shared pages; each has a check of its own",
    ("src/store/mapped_file.cpp", "::msync"): "the same",
}
CALLS = ("open open64 openat creat write pwrite pwritev writev fsync fdatasync sync syncfs sync_file_range fallocate posix_fallocate ftruncate "
         "truncate rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat remove mkdir mkdirat rmdir mkstemp mkostemp mkdtemp "
         "mknod mkfifo chmod fchmod fchmodat utimensat futimens copy_file_range sendfile splice memfd_create shm_open mmap msync").split()
BARE = "create_directory create_directories copy_file remove_all resize_file fsync fdatasync ftruncate pwrite pwritev posix_fallocate renameat2 mkstemp mkostemp mkdtemp fopen freopen fdopen tmpfile".split()
LIBRARY = "create_directory create_directories create_directory_symlink create_symlink create_hard_link copy copy_file copy_symlink remove remove_all rename resize_file permissions last_write_time".split()
FORBIDDEN = re.compile(
    r"(?<![\w>:])(?P<call>::(?:" + "|".join(CALLS) + r"))\s*\("
    r"|(?<![\w.>:])(?P<bare>(?:std::)?(?:" + "|".join(BARE) + r"))\s*\("
    r"|(?<![\w:])(?P<library>(?:std::)?(?:fs|filesystem)::(?:" + "|".join(LIBRARY) + r"))\s*\("
    r"|(?<!\w)(?P<stream>(?:std::)?(?:basic_)?(?:ofstream|fstream|filebuf))\b(?!>)"
    r"|(?P<torch>torch::save)\s*\("
)
NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*')


def check(root: pathlib.Path) -> list[str]:
    wrong, used = [], set()
    for path in sorted((root / "src").rglob("*")):
        name = path.relative_to(root).as_posix()
        is_test = path.stem.endswith("_test") or path.stem.startswith("test_") or path.stem.endswith("_suite")
        if path.suffix not in {".h", ".cpp", ".cu", ".inc"} or name in DOOR or is_test:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = NO_CODE.sub("", line)
            if re.match(r"\s*#\s*include", code):
                continue
            for found in FORBIDDEN.finditer(code):
                what = next(g for g in found.groups() if g)
                if (name, what) in ALLOWED:
                    used.add((name, what))
                else:
                    wrong.append(f"{name}:{number}: {what} goes past base/filesystem.h")
    there = {p.relative_to(root).as_posix() for p in (root / "src").rglob("*")}
    wrong += [f"tools/check_writers.py allows {what} in {name}, which has none" for name, what in sorted(ALLOWED) if name in there and (name, what) not in used]
    return wrong


if __name__ == "__main__":
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "writers: ok")
    sys.exit(1 if problems else 0)
