"""Which process is which: what names one for good, on a host whose process numbers come back."""

from __future__ import annotations

from pathlib import Path


def process_start(pid: int) -> str | None:
    """Return the kernel's start time of a process, which with its number names it for good; None if it is gone.

    A process that has ended and that nobody has waited for yet (in a container perhaps never) is gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def boot_id() -> str:
    """Return the id of this boot; clocks, counters and process numbers do not survive it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
