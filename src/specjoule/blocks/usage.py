"""Where a block's time on the board went: server starts, warm-up and settling, measured windows, the rest.

From journals alone. Times are the engine's clock where the journal has them (a simulated board's hours are virtual).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specjoule.blocks.journal import CELL, LAUNCH, SEGMENT, SEGMENT_END


@dataclass(frozen=True)
class Usage:
    """Board time of one segment or, summed, of many; s."""

    total_s: float = 0.0
    starts_s: float = 0.0
    """From calling a server to its answer."""
    ready_s: float = 0.0
    """Warm-up, settling, idle power."""
    windows_s: float = 0.0
    """Measured windows with the idle refreshes before and after each, by which their edges are measured."""
    starts: int = 0
    segments: int = 0

    @property
    def busy_share(self) -> float | None:
        """Share of the time with a server up that is warm-up, settling and measured windows."""
        up = self.total_s - self.starts_s
        return (self.ready_s + self.windows_s) / up if up > 0 else None

    @property
    def start_share(self) -> float | None:
        """Share of all time lost to server starts."""
        return self.starts_s / self.total_s if self.total_s > 0 else None

    def __add__(self, other: Usage) -> Usage:
        """Return the sum."""
        mine, theirs = asdict(self), asdict(other)
        return Usage(**{key: mine[key] + theirs[key] for key in mine})

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as plain JSON values, shares included."""
        return {**asdict(self), "busy_share": self.busy_share, "start_share": self.start_share}


NOT_USED = Usage()


def segment_usages(events: Iterable[Mapping[str, Any]]) -> dict[str, Usage]:
    """Return the usage of each ended segment of a journal, by segment id; segments that were killed have no end."""
    parts: dict[str, dict[str, float]] = {}
    begun: dict[str, float] = {}
    found: dict[str, Usage] = {}
    for event in events:
        segment = str(event.get("segment_id"))
        kind = event["event"]
        if kind == SEGMENT:
            begun[segment] = float(event.get("time", 0))
            parts[segment] = {"starts_s": 0.0, "ready_s": 0.0, "windows_s": 0.0, "starts": 0}
        elif segment not in parts:
            continue
        elif kind == LAUNCH:
            parts[segment]["starts_s"] += float(event.get("start_s") or 0)
            parts[segment]["ready_s"] += float(event.get("ready_s") or 0)
            parts[segment]["starts"] += 1
        elif kind == CELL:
            parts[segment]["windows_s"] += float(event.get("windows_s") or 0)
        elif kind == SEGMENT_END:
            total = event.get("clock_s")
            total_s = float(total) if total is not None else float(event.get("time", 0)) - begun[segment]
            p = parts[segment]
            found[segment] = Usage(
                total_s, p["starts_s"], p["ready_s"], p["windows_s"], starts=int(p["starts"]), segments=1
            )
    return found


def total_usage(journals: Iterable[Iterable[Mapping[str, Any]]]) -> Usage:
    """Return the sum over all ended segments of the journals."""
    total = Usage()
    for events in journals:
        for usage in segment_usages(events).values():
            total += usage
    return total
