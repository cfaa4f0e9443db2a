#!/bin/sh
# Creates .venv and installs what a make target needs, at the versions of requirements/lock.txt.
# Usage: requirements/setup.sh EXTRA[,EXTRA...]   Does nothing where that was installed before and nothing changed since.
set -u
cd "$(dirname "$0")/.." || exit 1
extras=$1
venv=${VENV:-.venv}
say() { printf '%s\n' "$*" >&2; }
stop() { say "error: $1"; exit 1; }

# With the folder's own name: what is installed points back to it, and a copied checkout would run the other one's code.
wanted=$( (cat requirements/lock.txt pyproject.toml requirements/setup.sh; pwd -P) | cksum)
stamp="$venv/.installed-$(printf '%s' "$extras" | tr ',' '-')"
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
if [ -x "$venv/bin/python" ] && ! "$venv/bin/python" -c "$supported" 2>/dev/null; then
  stop "$venv holds a Python that is not 3.11, 3.12 or 3.13; remove the folder $venv and run again."
fi
if [ -x "$venv/bin/python" ] && ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  [ -f "$venv/pyvenv.cfg" ] || stop "$venv is not a virtual environment; name another folder: make VENV=folder ..."
  say "An earlier set-up was interrupted; starting $venv anew ..."
  rm -rf "$venv"
fi
if [ ! -x "$venv/bin/python" ]; then
  if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
    stop "$venv holds something else than a virtual environment; move it away or name another folder: make VENV=folder ..."
  fi
  python=
  for candidate in "${PYTHON:-python3}" python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$supported" 2>/dev/null; then python=$candidate; break; fi
  done
  [ -n "$python" ] || stop "no Python 3.11, 3.12 or 3.13 was found; install one, or name it: make PYTHON=/path/to/python3.12 ..."
  say "Creating $venv with $("$python" --version) ..."
  "$python" -m venv --clear "$venv" 2>"${TMPDIR:-/tmp}/specjoule-venv.$$" || {
    tail -n 3 "${TMPDIR:-/tmp}/specjoule-venv.$$" >&2
    stop "$python cannot create a virtual environment; install its venv package (Debian, Ubuntu: apt install python3-venv) or check the disk."
  }
  rm -f "${TMPDIR:-/tmp}/specjoule-venv.$$"
fi

free_kb=$(df -Pk . | awk 'NR==2 {print $4}')
[ "${free_kb:-9999999}" -gt 3000000 ] || stop "less than 3 GB are free in $(pwd); make room and run again."
if [ "${free_kb:-9999999}" -le 7000000 ] && [ ! -d "$(echo "$venv"/lib/python*/site-packages/torch)" ]; then
  say "Less than 7 GB are free: enough only where pip is set to an index of CPU builds of PyTorch (on x86-64 the"
  say "ordinary one brings 4 GB of CUDA libraries along)."
fi

chosen=$extras
case ",$extras," in
  *,dev,*) command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 ||
    chosen="$extras,compiler" ;;  # the tests build a small library
esac

log="$venv/install-$extras.log"
say "Installing pinned dependencies [$chosen] (about two minutes the first time; log: $log) ..."
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q \
    -c requirements/lock.txt -e ".[$chosen]" >"$log" 2>&1; then
  grep -iE 'error' "$log" | tail -n 3 >&2
  if grep -qiE 'no space left' "$log"; then stop "the disk is full; make room and run again."; fi
  if grep -qiE 'name or service|temporary failure|connection|timed out|network is unreachable|max retries' "$log"; then
    stop "the package index could not be reached; check the network or proxy (pip's own settings apply) and run again."
  fi
  stop "the installation failed; see $log, mend it and run again."
fi
printf '%s' "$wanted" >"$stamp"
