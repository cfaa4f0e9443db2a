"""Readings of a meter that SpecJoule does not poll (BMC, PDU, wall), as one more channel of a trace.

CSV with a header. One time column, `unix_s` or `time` (ISO 8601 with its offset from UTC), and one of `energy_j`,
`energy_kwh`, `power_w`; units are in the names and nothing is guessed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from specjoule.errors import MeterError
from specjoule.meters.base import F64, I64, Refreshes, Samples, Trace

_JOULES = {"energy_j": 1.0, "energy_kwh": 3.6e6}


def add_external(trace: Trace, path: Path, channel: str, *, clock_error_s: float = 0.5) -> Trace:
    """Return the trace with an external meter's readings as `external-{channel}`.

    Cumulative energy becomes an energy channel, each reading dated to +- `clock_error_s` (the meter's clock against
    ours); power becomes a sample channel. Wall time is turned into monotonic time with the offset that the sampler
    recorded nearest to each reading. Raises MeterError that names file, line and remedy.
    """
    offsets = trace.samples.get("wall_offset_ns")
    if offsets is None or len(offsets) == 0:
        raise MeterError("The trace holds no wall-clock offset, so an external meter's times cannot be placed in it.")
    wall_ns, values, column = _read(path)
    monotonic_ns = _to_monotonic(wall_ns, offsets)
    name = f"external-{channel}"
    if column == "power_w":
        return replace(trace, samples={**trace.samples, f"{name}-power_w": Samples(monotonic_ns, values)})
    joules = values * _JOULES[column]
    if (np.diff(joules) < 0).any():
        raise MeterError(f"{path}: {column} decreases; a cumulative counter is expected, or a column `power_w`.")
    half_ns = round(clock_error_s * 1e9)
    energy = Refreshes(monotonic_ns - half_ns, monotonic_ns + half_ns, joules)
    return replace(trace, refreshes={**trace.refreshes, name: energy})


def _to_monotonic(wall_ns: I64, offsets: Samples) -> I64:
    """Take off the wall offset nearest in time: a wall clock that was stepped is followed, not averaged over."""
    recorded_wall_ns = offsets.t_ns + offsets.value
    nearest = np.abs(recorded_wall_ns[None, :] - wall_ns[:, None]).argmin(axis=1)
    monotonic_ns: I64 = wall_ns - np.round(offsets.value[nearest]).astype(np.int64)
    return monotonic_ns


def _read(path: Path) -> tuple[I64, F64, str]:
    try:
        with path.open(newline="") as handle:
            rows = list(csv.DictReader(handle))
    except OSError as error:
        raise MeterError(f"{path} cannot be read ({error}).") from None
    header = set(rows[0]) if rows else set()
    column = next((name for name in (*_JOULES, "power_w") if name in header), None)
    if column is None or not header & {"unix_s", "time"}:
        raise MeterError(
            f"{path}: expected a header with `unix_s` or `time` and one of `energy_j`, `energy_kwh`, `power_w`."
        )
    times, values = [], []
    for number, row in enumerate(rows, start=2):
        try:
            times.append(_wall_ns(row))
            values.append(float(row[column]))
        except (ValueError, TypeError) as error:
            raise MeterError(f"{path}, line {number}: {error}.") from None
    order = np.argsort(np.array(times, dtype=np.int64), kind="stable")
    return np.array(times, dtype=np.int64)[order], np.array(values, dtype=np.float64)[order], column


def _wall_ns(row: Mapping[str, str]) -> int:
    if row.get("unix_s"):
        seconds, _, fraction = row["unix_s"].partition(".")
        return int(seconds) * 1_000_000_000 + int((fraction + "000000000")[:9])
    when = datetime.fromisoformat(row["time"])
    if when.tzinfo is None:
        raise ValueError(f"{row['time']} has no offset from UTC")
    return round(when.timestamp() * 1e6) * 1000
