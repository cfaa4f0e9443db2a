"""What is recorded of the host and the code that measured."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from specjoule.processes import boot_id


@dataclass(frozen=True)
class HostFacts:
    """Facts of the machine at a segment's start; null where the system does not tell."""

    host: str
    boot_id: str
    cpu_model: str | None
    governor: str | None
    wall_offset_ns: int
    git_commit: str | None


def host_facts(root: Path) -> HostFacts:
    """Read the facts of this host; `root` is the project whose commit is recorded."""
    return HostFacts(
        host=socket.gethostname(),
        boot_id=boot_id(),
        cpu_model=_cpu_model(),
        governor=_governor(),
        wall_offset_ns=time.time_ns() - time.monotonic_ns(),
        git_commit=git_commit(root),
    )


def load_average() -> float | None:
    """Return the 1-minute load average."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


@lru_cache(maxsize=4)
def git_commit(root: Path) -> str | None:
    """Return the commit of the checkout at `root`, with '-dirty' where it has changes; None outside a checkout."""
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if dirty else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None
