"""Traces as files: one Parquet table in long form, with the board and its calibration in the schema's metadata."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.errors import MeterError
from specjoule.meters.base import BoardInfo, Calibration, Refreshes, Samples, Trace

_KEY = b"specjoule.meter"
_SCHEMA = pa.schema(
    [
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("channel", pa.dictionary(pa.int16(), pa.string())),
        ("read_start_ns", pa.int64()),
        ("read_end_ns", pa.int64()),
        ("value", pa.float64()),
    ]
)
"""`kind` refresh: counter joules, dated between two reads. `kind` sample: a reading, both times alike."""


@dataclass(frozen=True)
class RecordedTrace:
    """A trace with all that is needed to compute its windows again."""

    trace: Trace
    meter: str
    board: BoardInfo
    calibration: Calibration


def write_trace(path: Path, recorded: RecordedTrace) -> None:
    """Write a trace whole or not at all."""
    tables = [
        _table("refresh", n, r.read_start_ns, r.read_end_ns, r.counter_j) for n, r in recorded.trace.refreshes.items()
    ]
    tables += [_table("sample", n, s.t_ns, s.t_ns, s.value) for n, s in recorded.trace.samples.items()]
    meta = {
        "meter": recorded.meter,
        "board": asdict(recorded.board),
        "calibration": asdict(recorded.calibration),
    }
    table = pa.concat_tables([_SCHEMA.empty_table(), *tables]).replace_schema_metadata(
        {_KEY: json.dumps(meta).encode()}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial, compression="zstd")
    partial.replace(path)


def read_trace(path: Path) -> RecordedTrace:
    """Read a trace back. Raises MeterError that names the file."""
    try:
        table = pq.read_table(path)
        meta = json.loads(table.schema.metadata[_KEY])
    except FileNotFoundError:
        raise MeterError(f"There is no trace {path}; make one with `specjoule meter record`.") from None
    except (pa.ArrowInvalid, KeyError, TypeError, OSError) as error:
        raise MeterError(f"{path} is not a trace written by `specjoule meter record` ({error}).") from None
    kind, channel = (np.asarray(table[name].to_pylist(), dtype=object) for name in ("kind", "channel"))
    start_ns, end_ns, value = (table[name].to_numpy() for name in ("read_start_ns", "read_end_ns", "value"))
    refreshes, samples = {}, {}
    for name in dict.fromkeys(channel[kind == "refresh"]):
        rows = (kind == "refresh") & (channel == name)
        refreshes[str(name)] = Refreshes(start_ns[rows], end_ns[rows], value[rows])
    for name in dict.fromkeys(channel[kind == "sample"]):
        rows = (kind == "sample") & (channel == name)
        samples[str(name)] = Samples(start_ns[rows], value[rows])
    return RecordedTrace(
        Trace(refreshes, samples), meta["meter"], BoardInfo(**meta["board"]), Calibration(**meta["calibration"])
    )


def _table(kind: str, channel: str, start_ns: Any, end_ns: Any, value: Any) -> pa.Table:
    n = len(value)
    columns = [
        pa.array([kind] * n).cast(_SCHEMA.field("kind").type),
        pa.array([channel] * n).cast(_SCHEMA.field("channel").type),
        pa.array(start_ns, pa.int64()),
        pa.array(end_ns, pa.int64()),
        pa.array(value, pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)
