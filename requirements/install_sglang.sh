#!/usr/bin/env bash
# Makes the environment in which the pinned SGLang parses and resolves commands and serves a tiny model on the CPU.
# Usage: requirements/install_sglang.sh [FOLDER]      (default .venv-sglang; SPECJOULE_PYTHON311 names the interpreter)
#
# Three packages come without their dependencies: they ask for CUDA-only builds (kernels, torchvision, flashinfer) that
# no CPU needs. On a GPU node install the release whole instead: see envs/sglang.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-sglang}
python=${SPECJOULE_PYTHON311:-python3.11}
lock=requirements/sglang.txt
stamp="$folder/.specjoule-lock"
if [ -x "$folder/bin/python" ] && cmp -s "$lock" "$stamp"; then
  echo "$folder is up to date"
  exit 0
fi
command -v "$python" >/dev/null || { echo "no $python: SGLang's environment needs Python 3.11 (set SPECJOULE_PYTHON311)" >&2; exit 1; }
rm -rf "$folder"
"$python" -m venv "$folder"
echo '*' > "$folder/.gitignore"
pip() { # a registry that stutters gets a second and a third chance
  for pause in 5 20 -; do
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" && return
    [ "$pause" = - ] || sleep "$pause"
  done
  return 1
}
alone='^(sglang|compressed-tensors|xgrammar)=='
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -E "$alone" "$lock" > "$work/alone.txt"
grep -vE "$alone" "$lock" > "$work/lock.txt"
pip torch==2.13.0
pip -r "$work/lock.txt"
pip --no-deps -r "$work/alone.txt"
# A CUDA build of torch brings the triton it was made for; a CPU build brings none, and SGLang imports it all the same.
"$folder/bin/python" -c 'import triton' 2>/dev/null || pip triton==3.9.0
cp "$lock" "$stamp"
"$folder/bin/python" -c 'from importlib.metadata import version; print("sglang", version("sglang"), "in", "'"$folder"'")'
