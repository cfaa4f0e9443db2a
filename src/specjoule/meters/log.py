"""The sampler's log: fixed-size records appended by one process and read by another while the file grows.

Why a file and not a pipe: a parent that does not read (it is busy measuring) must never block the sampler, and what was
sampled must survive the parent. One `os.write` of whole records to a file opened for appending is never interleaved;
a record that a kill cut short is dropped by the reader.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specjoule.errors import MeterError
from specjoule.meters.base import F64, I64, Refreshes, Samples

MAGIC = b"SJMETER1"
REFRESH, SAMPLE, FAULT = 1, 2, 3
"""Kinds of record: a dated counter refresh, a reading of something else, a fault (channel = its reason's name)."""

RECORD = np.dtype(
    [("kind", "<u1"), ("pad", "<u1"), ("channel", "<u2"), ("zero", "<u4"), ("start_ns", "<i8"), ("end_ns", "<i8"),
     ("value", "<f8")]
)  # fmt: skip
_PACK = struct.Struct("<BBHIqqd")
_LENGTH = struct.Struct("<I")

Records = npt.NDArray[np.void]


class LogWriter:
    """Appends records; every call is one system call, so that nothing is lost when the process is killed."""

    def __init__(self, path: Path, channels: Sequence[str], header: Mapping[str, Any]) -> None:
        self._index = {name: i for i, name in enumerate(channels)}
        text = json.dumps({"channels": list(channels), **header}).encode()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.write(self._fd, MAGIC + _LENGTH.pack(len(text)) + text)

    def refreshes(self, read_start_ns: int, read_end_ns: int, values: Mapping[str, float]) -> None:
        """Append one refresh per channel of `values` (joules), all dated alike."""
        self._append(REFRESH, read_start_ns, read_end_ns, values)

    def samples(self, start_ns: int, end_ns: int, values: Mapping[str, float]) -> None:
        """Append one sample per channel of `values`, taken between the two times."""
        self._append(SAMPLE, start_ns, end_ns, values)

    def fault(self, t_ns: int, code: str, since_ns: int | None = None) -> None:
        """Append the fault `code`, true from `since_ns` (default: now) to `t_ns`."""
        self._append(FAULT, t_ns if since_ns is None else since_ns, t_ns, {code: 1.0})

    def _append(self, kind: int, start_ns: int, end_ns: int, values: Mapping[str, float]) -> None:
        records = (_PACK.pack(kind, 0, self._index[name], 0, start_ns, end_ns, v) for name, v in values.items())
        os.write(self._fd, b"".join(records))

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class LogContent:
    """All whole records of a log, split by kind and channel, in time order."""

    refreshes: dict[str, Refreshes]
    samples: dict[str, Samples]
    faults: dict[str, tuple[I64, I64]]
    """By reason code: since when and until when the sampler saw it, ns."""


class LogReader:
    """Reads a growing log; each call of `read` takes in what was appended since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channels: list[str] = []
        self._offset = 0
        self._tail = b""
        self._parts: list[Records] = []

    def read(self, since_ns: int | None = None) -> LogContent:
        """Return everything recorded so far, or from `since_ns` on."""
        records = self.records()
        if since_ns is not None:
            # Two threads write, each in order: the log as a whole is sorted to within one reading's duration.
            first = int(np.searchsorted(np.maximum.accumulate(records["end_ns"]), since_ns)) if len(records) else 0
            records = records[first:]
        return split(records, self._channels)

    def records(self) -> Records:
        """Return every whole record so far as one structured array (`RECORD`)."""
        with self._path.open("rb") as handle:
            if self._offset == 0:
                header, self._offset = read_header(handle.read(len(MAGIC) + _LENGTH.size + 1_000_000), self._path)
                self._channels = list(header["channels"])
            handle.seek(self._offset)
            data = self._tail + (new := handle.read())
        self._offset += len(new)
        whole = len(data) - len(data) % RECORD.itemsize
        self._tail = data[whole:]
        if whole:
            self._parts.append(np.frombuffer(data[:whole], dtype=RECORD))
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.zeros(0, dtype=RECORD)


def read_header(data: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a log and the offset of its first record."""
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start or not data.startswith(MAGIC):
        raise MeterError(f"{path} is not a log of the energy sampler.")
    (length,) = _LENGTH.unpack(data[len(MAGIC) : start])
    return json.loads(data[start : start + length]), start + length


def split(records: Records, channels: Sequence[str]) -> LogContent:
    """Split records by kind and channel; order within a channel is the order of writing, which is that of time."""

    def by_channel(kind: int) -> dict[str, Records]:
        chosen = records[records["kind"] == kind]
        return {channels[i]: chosen[chosen["channel"] == i] for i in np.unique(chosen["channel"])}

    return LogContent(
        refreshes={
            name: Refreshes(_i64(part["start_ns"]), _i64(part["end_ns"]), _f64(part["value"]))
            for name, part in by_channel(REFRESH).items()
        },
        samples={
            name: Samples(_i64((part["start_ns"] + part["end_ns"]) // 2), _f64(part["value"]))
            for name, part in by_channel(SAMPLE).items()
        },
        faults={name: (_i64(part["start_ns"]), _i64(part["end_ns"])) for name, part in by_channel(FAULT).items()},
    )


def _i64(values: npt.NDArray[Any]) -> I64:
    return np.ascontiguousarray(values, dtype=np.int64)


def _f64(values: npt.NDArray[Any]) -> F64:
    return np.ascontiguousarray(values, dtype=np.float64)
