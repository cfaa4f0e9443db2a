"""From a journal's line to an event: what every reader may rely on is checked here once, and nowhere again.

A line that is no event is what a line torn by a kill is: something that did not happen. Unknown kinds and fields are
kept as they are, so that a journal of a later release can be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

SEGMENT = "segment"
LAUNCH = "launch"
PROOF = "proof"
CELL_START = "cell_start"
CELL = "cell"
REMEASURE = "remeasure"
ERROR = "error"
SEGMENT_END = "segment_end"

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _is_digests(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


_FIELDS: dict[str, Check] = {
    "time": _is_number,
    "segment_id": _is_text,
    "cell_hash": _is_text,
    "role": _is_text,
    "drafter": _is_text,
    "status": _is_text,
    "outcome": _is_text,
    "validity": _is_text,
    "file": _is_text,
    "attempt": _is_count,
    "launch": _is_count,
    "capture": _is_flag,
    "path": _or_null(_is_text),
    "reason": _or_null(_is_text),
    "message": _or_null(_is_text),
    "instrumentation": _or_null(_is_text),
    "validity_reasons": _or_null(_is_texts),
    "parts": _or_null(_is_digests),
    "resolved": _or_null(_is_mapping),
    "locked_mhz": _or_null(_is_count),
    "seconds": _or_null(_is_number),
    "windows_s": _or_null(_is_number),
    "start_s": _or_null(_is_number),
    "ready_s": _or_null(_is_number),
    "clock_s": _or_null(_is_number),
}
"""What a field holds wherever it occurs."""

_NEEDED: dict[str, tuple[str, ...]] = {
    SEGMENT: ("segment_id",),
    LAUNCH: ("segment_id", "launch", "drafter", "capture", "locked_mhz"),
    PROOF: ("segment_id", "launch", "graphs"),
    CELL: ("cell_hash",),
    REMEASURE: ("cell_hash",),
    SEGMENT_END: ("segment_id", "outcome", "time"),
}
"""Fields without which an event of a kind says nothing."""


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event that a journal's line holds; None where it holds none."""
    try:
        event = json.loads(line)
        if b"\\ud" in line.lower():
            json.dumps(event, ensure_ascii=False).encode()  # half a character cannot be written or shown again
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    if any(name not in event for name in _NEEDED.get(event["event"], ())):
        return None
    sound = all(check(event[name]) for name, check in _FIELDS.items() if name in event)
    return event if sound else None
