"""What a stream leaves behind: raw pieces with the time each was read, parsed once nothing is measured any more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SEPARATOR = b"\n\n"
PREFIX = b"data: "
DONE = b"[DONE]"


@dataclass(frozen=True)
class Piece:
    """Bytes as they came from one connection, and when they were read (ns of the engine's clock)."""

    t_ns: int
    data: bytes
    connection: int = 0


@dataclass(frozen=True)
class Event:
    """One server-sent event: when its last byte was read, which connection brought it, and its JSON content."""

    t_ns: int
    connection: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Parsed:
    """The events of a wave in order of arrival, and which connections ended as they should."""

    events: tuple[Event, ...]
    finished: frozenset[int]
    """Connections whose stream ended with its end mark; a dropped stream is not among them."""


def parse(pieces: Iterable[Piece]) -> Parsed:
    """Cut raw pieces into events; an event counts from the piece that completed it.

    Raises ValueError for an event that is not a JSON object: a stream we do not understand is no measurement.
    """
    rest: dict[int, bytes] = {}
    events: list[Event] = []
    finished: set[int] = set()
    for piece in pieces:
        *whole, rest[piece.connection] = (rest.get(piece.connection, b"") + piece.data).split(SEPARATOR)
        for text in whole:
            line = text.strip()
            if not line:
                continue
            if not line.startswith(PREFIX):
                raise ValueError(f"not a server-sent event: {line[:80]!r}")
            body = line[len(PREFIX) :].strip()
            if body == DONE:
                finished.add(piece.connection)
                continue
            content = json.loads(body)
            if not isinstance(content, dict):
                raise ValueError(f"an event must be a JSON object, not {body[:80]!r}")
            events.append(Event(piece.t_ns, piece.connection, content))
    return Parsed(tuple(events), frozenset(finished))
