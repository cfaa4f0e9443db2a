"""What Slurm says: jobs of a block that are still in the queue, the time this job has left, going back to the queue."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

CALL_S = 30
Runner = Callable[[Sequence[str]], str | None]


def call(command: Sequence[str]) -> str | None:
    """Run a Slurm command; None if it is missing, fails or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def earlier_jobs(rule: str, folder: Path, listing: str) -> tuple[str, ...]:
    """Return the ids of queued or running jobs of the rule that were submitted from `folder`.

    `listing`: lines `id|comment|folder` as `queue_listing` returns them. A main process that was killed leaves its jobs
    in the queue; the next one's job for the same block waits for them instead of finding the block busy.
    """
    found = []
    for line in listing.splitlines():
        parts = line.split("|")
        if len(parts) == 3 and parts[1] == f"rule_{rule}" and Path(parts[2]) == folder:
            found.append(parts[0])
    return tuple(dict.fromkeys(found))


def queue_listing() -> str:
    """Return this user's jobs, asked at most every ten seconds; empty without Slurm."""
    return _listing(int(time.monotonic() // 10))


@lru_cache(maxsize=2)
def _listing(decade: int) -> str:
    return call(["squeue", "--me", "--noheader", "--format=%A|%k|%Z"]) or ""


def seconds_left(environment: Mapping[str, str], now: float, run: Runner = call) -> float | None:
    """Return the seconds until this job's time limit; None outside Slurm or without a limit."""
    end = environment.get("SLURM_JOB_END_TIME", "")
    if end.isdigit():
        return float(end) - now
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    text = run(["squeue", "--noheader", "--jobs", job, "--format=%L"])
    return parse_duration(text.strip()) if text else None


def parse_duration(text: str) -> float | None:
    """Return Slurm's `days-hours:minutes:seconds` (or a part of it) as seconds; None for 'UNLIMITED' and the like."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(p.isdigit() for p in parts) or (days and not days.isdigit()):
        return None
    numbers = [int(p) for p in parts]
    if days:
        numbers += [0] * (3 - len(numbers))
    seconds = 0
    for number in numbers:
        seconds = seconds * 60 + number
    return float(int(days or 0) * 86400 + seconds)


def requeue(run: Runner = call) -> bool:
    """Send this job back to the queue; True if Slurm agreed (it then ends this process soon)."""
    job = os.environ.get("SLURM_JOB_ID")
    return job is not None and run(["scontrol", "requeue", job]) is not None
