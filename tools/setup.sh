#!/usr/bin/env bash
# Brings what the build, the demo and the tests need: Debian packages, and a Python environment inside the tree with libtorch.
# Idempotent; does nothing where all is there. `setup.sh test` adds what only the tests need (oracles, browser).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(git make cmake ninja-build g++ ccache pkg-config python3 python3-venv libfmt-dev libspdlog-dev libcli11-dev
  libtomlplusplus-dev nlohmann-json3-dev libsimdjson-dev libpcre2-dev libxml2-dev libcld2-dev
  mandoc libzstd-dev zlib1g-dev libxxhash-dev libssl-dev libhwloc-dev libeigen3-dev libnlopt-cxx-dev libsqlite3-dev libpq-dev libgtest-dev librapidcheck-dev libopenmpi-dev openmpi-bin)
python_packages=(torch==2.13.0 numpy)
if [ "${1:-}" = test ]; then
  packages+=(clang-16 libclang-rt-16-dev clang-format-14 clang-tidy-16 chromium libjemalloc2 postgresql libcurl4 openssl)
  python_packages+=(transformers tokenizers tiktoken tensorboard safetensors license-expression python-debian libclang==14.0.6)
fi

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  echo "setup: installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# A CUDA build of torch that is already there is used as it is, if it is recent enough (cmake/Torch.cmake decides the same
# way). The tests' oracles run in the tree's own environment all the same.
if [ "${1:-}" != test ]; then
  cuda=$(python3 -c 'import torch
if torch.version.cuda: print(torch.__version__)' 2>/dev/null) || cuda=
  if [ -n "$cuda" ] && [ "$(printf '%s\n' 2.11 "${cuda%%[!0-9.]*}" | sort -V | head -1)" = 2.11 ]; then
    echo "setup: using the CUDA build of torch of the system's Python, $cuda"
    exit 0
  fi
  [ -z "$cuda" ] || echo "setup: the CUDA build of torch of the system's Python is $cuda, older than 2.11: not used"
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
have() { .venv/bin/python -c 'import importlib.metadata,sys
for p in sys.argv[1:]: importlib.metadata.version(p.split("==")[0])' "$@" 2>/dev/null; }
# torch first and pinned: asked for by another package it would come with gigabytes of CUDA libraries.
have torch || .venv/bin/pip install -q --disable-pip-version-check torch==2.13.0 numpy
have "${python_packages[@]}" || .venv/bin/pip install -q --disable-pip-version-check "${python_packages[@]}"
