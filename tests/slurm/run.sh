#!/usr/bin/env bash
# A real Slurm on this host, for the tests only: installs Debian's packages where they are missing (needs root), starts
# a controller and two nodes with stand-in boards in a temporary folder, runs the tests, ends every daemon.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! PATH="$PATH:/usr/sbin" command -v slurmctld munged sbatch > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    timeout -k 10 120 apt-get update -qq
    timeout -k 10 240 apt-get install -y -qq --no-install-recommends slurm-wlm munge > /dev/null
fi
exec timeout -k 30 600 "${VENV:-.venv}/bin/python" tests/slurm/run.py "$@"
