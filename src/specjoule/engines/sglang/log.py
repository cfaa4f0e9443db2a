"""The server's log: read from where we left it, and cut into the lines that prove or explain something."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DECODE_LINE = re.compile(
    r"Decode batch.*?#running-req: (?P<running>\d+),.*?(?P<kind>cuda|cpu) graph: (?P<graph>True|False)"
)
"""A decode step at log interval 1; under speculation its graph flag speaks of the target's pass only."""


@dataclass(frozen=True)
class DecodeStep:
    """One forward pass of the decode phase, by the scheduler's own log line."""

    running: int
    graph: bool


class LogReader:
    """Reads a growing log; `mark` remembers a place, `since` returns the text after it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return the log's present length in bytes."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def since(self, mark: int = 0) -> str:
        """Return what was written after `mark`."""
        try:
            with self.path.open("rb") as log:
                log.seek(mark)
                return log.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""


def decode_steps(text: str) -> tuple[DecodeStep, ...]:
    """Return every decode step that a piece of the log tells of."""
    return tuple(
        DecodeStep(int(m["running"]), m["graph"] == "True")
        for m in (DECODE_LINE.search(line) for line in text.splitlines() if "Decode batch" in line)
        if m is not None
    )


NOISE = re.compile(r"ServerArgs\(|Decode batch|Prefill batch|HTTP/1\.1|UserWarning|warnings\.warn|Ignore import error")


def relevant_lines(text: str, count: int = 25) -> str:
    """Return the last lines that explain an end: steps, requests and import chatter are left out."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not NOISE.search(line)]
    return "\n".join(lines[-count:])
