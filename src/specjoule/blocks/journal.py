"""The journal of a block: an append-only list of what happened, one JSON object a line.

`status` and `plan` read journals, not thousands of Parquet files. A line is written with one `write` to a file opened
for appending and flushed to disk; a line torn by a kill is ignored by readers and fenced off by the next writer.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specjoule.blocks.events import (
    CELL,
    CELL_START,
    ERROR,
    LAUNCH,
    PROOF,
    REMEASURE,
    SEGMENT,
    SEGMENT_END,
    parse_event,
)  # fmt: skip
from specjoule.errors import StoreError
from specjoule.files import ensure_folder

__all__ = [
    "CELL", "CELL_START", "ERROR", "LAUNCH", "PROOF", "REMEASURE", "SEGMENT", "SEGMENT_END",
    "BlockState", "Journal", "read_events", "summarise",
]  # fmt: skip

log = logging.getLogger(__name__)


class Journal:
    """Appends events to a journal file and reads them back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **fields: Any) -> None:
        """Append one event with the present wall-clock time; on return it is on disk. Raises StoreError."""
        line = json.dumps({"event": event, "time": time.time(), **fields}, ensure_ascii=False, separators=(",", ":"))
        try:
            ensure_folder(self.path.parent)
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(fd).st_size
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + line.encode() + b"\n"
                written = os.write(fd, data)
                if written != len(data):
                    raise OSError(28, "No space left on device")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(f"{self.path}: the journal cannot be written ({error.strerror or error})") from error

    def events(self) -> list[dict[str, Any]]:
        """Return all whole events in order; a missing journal is an empty one."""
        return read_events(self.path)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of the journal at `path`; lines that are no events are left out, and named in the log once.

    Not named: a last line without an end, which a writer may be at.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path}: the journal cannot be read ({error.strerror or error})") from error
    lines = data.split(b"\n")
    parsed = [(number, parse_event(line)) for number, line in enumerate(lines, 1) if line.strip()]
    odd = [number for number, event in parsed if event is None and number < len(lines)]
    if odd:
        _name_odd_lines(path, len(odd), odd[0])
    return [event for _, event in parsed if event is not None]


_NAMED: set[tuple[Path, int, int]] = set()
"""Odd lines that this process has named: a journal is read several times in a run."""


def _name_odd_lines(path: Path, count: int, first: int) -> None:
    if (path, count, first) in _NAMED:
        return
    _NAMED.add((path, count, first))
    lines = (
        f"line {first} is no event and is" if count == 1 else f"{count} lines (first: {first}) are no events and are"
    )
    log.warning("%s: %s left out (torn by a kill, or damaged)", path, lines)


@dataclass(frozen=True)
class BlockState:
    """What a block's journal says, for one pass over its events."""

    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest finished attempt (role `cell`) by cell hash; a cell marked for remeasuring is not here."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Attempts so far (both roles) by cell hash."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of the newest finished attempt by cell hash."""
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest failure of cells that have not finished since."""
    running: dict[str, Any] | None = None
    """The cell being measured by the segment that is still open, if any."""
    segments: int = 0
    last_error: dict[str, Any] | None = None
    segments_of: dict[str, set[str]] = field(default_factory=dict)
    """Segments in which a cell was finished (role `cell`), by cell hash."""
    by_path: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest finished attempt by the cell's path, whatever its hash."""
    marked: set[str] = field(default_factory=set)
    """Cell hashes marked for remeasuring and not finished since."""
    launches: list[dict[str, Any]] = field(default_factory=list)


def summarise(events: Iterable[dict[str, Any]]) -> BlockState:
    """Fold a journal's events into the block's state; a pure function."""
    state = BlockState()
    running: dict[str, Any] | None = None
    last_error: dict[str, Any] | None = None
    segments = 0
    for event in events:
        kind = event["event"]
        if kind in (SEGMENT, CELL, SEGMENT_END):
            running = None
        if kind == SEGMENT:
            segments += 1
        elif kind == LAUNCH:
            state.launches.append(event)
        elif kind == CELL_START:
            running = event
        elif kind == CELL:
            _fold_cell(state, event)
        elif kind == REMEASURE:
            state.finished.pop(event["cell_hash"], None)
            state.marked.add(event["cell_hash"])
        elif kind == ERROR:
            last_error = event
        elif kind == SEGMENT_END and event.get("outcome") == "finished":
            last_error = None
    return replace(state, running=running, segments=segments, last_error=last_error)


def _fold_cell(state: BlockState, event: dict[str, Any]) -> None:
    digest = event["cell_hash"]
    state.attempts[digest] = max(state.attempts.get(digest, 0), int(event.get("attempt", 1)))
    if event.get("role") != "cell":
        return
    if event.get("status") == "failed":
        state.failed[digest] = event
        return
    state.finished[digest] = event
    state.failed.pop(digest, None)
    state.marked.discard(digest)
    state.segments_of.setdefault(digest, set()).add(str(event.get("segment_id")))
    if event.get("path") is not None:
        state.by_path[event["path"]] = event
    if event.get("seconds") is not None:
        state.seconds[digest] = float(event["seconds"])
