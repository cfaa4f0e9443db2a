"""Snakemake that asks for the jobs' state every second: the executor's own pauses grow by ten seconds each."""

from __future__ import annotations

import sys

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

RemoteExecutor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, value: None)

if __name__ == "__main__":
    main(sys.argv[1:])
