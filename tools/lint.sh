#!/usr/bin/env bash
# Formatter, layers, writers of files, arithmetic rules, file sizes, ASCII and the page of results. `make lint` and the nightly checks also compile each
# header alone (tools/check_headers.py).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format-14 >/dev/null || { echo "lint: clang-format-14 is missing; tools/setup.sh test brings it" >&2; exit 1; }
git ls-files '*.cpp' '*.h' | xargs -P "$(nproc)" -n 40 clang-format-14 --dry-run --Werror
python3 tools/check_layers.py
python3 tools/check_writers.py
python3 tools/check_helpers.py
if git grep -nE -- '-ffast-math|-Ofast|-funsafe-math' -- '*.txt' '*.cmake' '*.cpp' '*.h' Makefile ':!tools'; then
  echo "lint: relaxed arithmetic is banned" >&2
  exit 1
fi
if git grep -nIP '[^\x00-\x7F]' -- 'src/*.h' 'src/*.cpp' '*.sh' '*.cmake' ':!*_test.cpp' | head -5 | grep .; then
  echo "lint: sources are ASCII" >&2
  exit 1
fi
# A message that quotes a file's name or text must not reach the terminal as it stands.
if git grep -nE 'printf\(stderr|print\(stderr' -- 'src/*.cpp' 'src/*.h' ':!src/base/console.cpp' ':!*_test.cpp'; then
  echo "lint: say() of base/console.h writes to stderr" >&2
  exit 1
fi
# The map names only what is there.
for path in $(grep -oE '`src/[a-z/_.]+`' ARCHITECTURE.md | tr -d '`' | sort -u); do
  [ -e "$path" ] || { echo "lint: ARCHITECTURE.md names $path, which is not there" >&2; exit 1; }
done
long=$(git ls-files 'src/*.cpp' 'src/*.h' 'tests/*.cpp' | xargs wc -l | awk '$1 > 800 && $2 != "total" {print $2 " has " $1 " lines"}')
if [ -n "$long" ]; then
  echo "lint: over 800 lines: $long" >&2
  exit 1
fi
tools/results.py check
echo "lint: ok"
