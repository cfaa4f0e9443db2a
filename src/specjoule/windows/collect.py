"""Collect: from raw files to one table of scalar rows a block, with the verdict that alone decides.

Raw files are never changed. The provisional verdict in the journal comes from the same function (`windows.validity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.meters.base import Calibration
from specjoule.reasons import Reason, Validity
from specjoule.study.model import ValidityConfig
from specjoule.windows.io import read_window_table
from specjoule.windows.recompute import recompute_rows
from specjoule.windows.schema import ARROW_SCHEMA, COLLECTED, SCALARS
from specjoule.windows.validity import judge_rows

ROWS_SCHEMA: pa.Schema = pa.schema(
    [ARROW_SCHEMA.field(name) for name in SCALARS] + [pa.field(c.name, c.type, nullable=c.nullable) for c in COLLECTED]
)
"""The collected table: every scalar column of the raw files plus the verdict."""


def collect_files(
    files: Iterable[Path],
    raw_root: Path,
    rules: ValidityConfig,
    drifts: Mapping[tuple[str, bool, int | None], float | None],
) -> pa.Table:
    """Return the rows of the raw `files` with validity and reasons.

    `drifts` maps (segment, capture, locked clock) to the block's drift; where it is beyond the limit every row of that
    segment is invalid, where it is unknown (no closing plain) rows keep their verdict and the drift is null.
    Raises StoreError naming a file that cannot be read.
    """
    tables = [_collect_file(file, raw_root, rules, drifts) for file in files]
    return pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table()


def _collect_file(
    file: Path, raw_root: Path, rules: ValidityConfig, drifts: Mapping[tuple[str, bool, int | None], float | None]
) -> pa.Table:
    return _judged(read_window_table(file, columns=[*SCALARS, "requests"]), file, raw_root, rules, drifts)


def _judged(
    table: pa.Table,
    file: Path,
    raw_root: Path,
    rules: ValidityConfig,
    drifts: Mapping[tuple[str, bool, int | None], float | None],
) -> pa.Table:
    rows = table.select(list(SCALARS)).to_pylist()
    requests = table.column("requests").to_pylist()
    verdicts, reasons, drift_column = [], [], []
    for row, verdict in zip(rows, judge_rows(rows, requests, rules), strict=True):
        found = list(verdict.reasons)
        validity = verdict.validity
        drift = drifts.get((row["segment_id"], row["capture"], row["locked_mhz"]))
        if drift is not None and abs(drift) > rules.max_block_drift and validity is not Validity.NOT_MEASURED:
            found.append(Reason.BLOCK_DRIFT)
            validity = Validity.INVALID
        verdicts.append(str(validity))
        reasons.append(",".join(str(r) for r in found) or None)
        drift_column.append(drift)
    added = [
        pa.array(verdicts, pa.string()),
        pa.array(reasons, pa.string()),
        pa.array(drift_column, pa.float64()),
        pa.array(
            [str(file.relative_to(raw_root)) if file.is_relative_to(raw_root) else str(file)] * len(rows), pa.string()
        ),
    ]
    scalar = table.select(list(SCALARS)).cast(pa.schema([ARROW_SCHEMA.field(n) for n in SCALARS]))
    return pa.Table.from_arrays([*scalar.columns, *added], schema=ROWS_SCHEMA)


def collect_recomputed(
    files: Iterable[Path],
    raw_root: Path,
    rules: ValidityConfig,
    drifts: Mapping[tuple[str, bool, int | None], float | None],
    calibrations: Callable[[str | None], Calibration | None],
) -> tuple[pa.Table, list[float]]:
    """As `collect_files`, with every energy computed again from its stored trace; raw files stay as they are.

    `calibrations` gives the present calibration of a board by its UUID, or None to keep the lag a row was measured
    with. Also returns the relative change of every window's energy that is known before and after.
    """
    tables, changes = [], []
    for file in files:
        rows = read_window_table(file).to_pylist()
        for row, again in zip(rows, recompute_rows(rows, calibrations(rows[0]["gpu_uuid"])), strict=True):
            if again is not None:
                row.update(again.columns)
                if again.relative_change is not None:
                    changes.append(again.relative_change)
        table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
        tables.append(_judged(table.select([*SCALARS, "requests"]), file, raw_root, rules, drifts))
    return (pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table()), changes


def drifts_of(record: Mapping[str, Any]) -> dict[tuple[str, bool, int | None], float | None]:
    """Return the drift by (segment, capture, locked clock) from a block's record."""
    return {
        (segment["segment_id"], item["capture"], item["locked_mhz"]): item["drift"]
        for segment in record["segments"]
        for item in segment["drift"]
    }


def write_rows(table: pa.Table, path: Path) -> None:
    """Write a collected table atomically."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_rows(paths: Sequence[Path]) -> Any:
    """Return collected tables as one pandas frame, in order. Raises StoreError."""
    tables = []
    for path in paths:
        try:
            tables.append(pq.read_table(path))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise StoreError(f"{path}: cannot be read as a collected table ({str(error).splitlines()[0]})") from error
    table = pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table()
    return table.to_pandas()
