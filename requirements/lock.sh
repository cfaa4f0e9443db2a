#!/usr/bin/env bash
# Resolves requirements/lock.txt anew from pyproject.toml, for every supported Python and architecture at once.
# The CUDA libraries that one build of torch brings along are left to that build: they are not ours to pin.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header -q \
  --extra dev --extra slurm --extra reference --extra notebooks --extra docs --extra compiler "$@" \
  | grep -vE '^(nvidia-(cublas|cu|nv|nccl)|cuda-|triton)' > requirements/lock.txt.new
{ echo "# Every version this project is tested with; made by requirements/lock.sh, used as: pip install -c requirements/lock.txt"
  cat requirements/lock.txt.new; } > requirements/lock.txt
rm requirements/lock.txt.new
