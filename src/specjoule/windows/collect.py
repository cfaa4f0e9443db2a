"""Collect: from raw files to a block's tables: scalar rows with the verdict that alone decides, and flat nested frames.

Every analysis starts here, whether Snakemake or a folder of raw windows asked for it: each raw file is read once, and
only the columns that are needed. Raw files are never changed. The provisional verdict in the journal comes from the
same rules (`windows.validity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.meters.base import Calibration
from specjoule.reasons import Reason, Status, Validity
from specjoule.study.model import ValidityConfig
from specjoule.windows.drift import Drifts, beyond_limit
from specjoule.windows.io import conformed, read_window_table
from specjoule.windows.judging import JUDGED_FIELDS, judge_table
from specjoule.windows.nested import (
    LIST_FIELDS,
    PARTS,
    REFRESH_FIELDS,
    REQUEST_FIELDS,
    SAMPLE_FIELDS,
    Nested,
    combine,
    flatten,
    thin_timeline,
)  # fmt: skip
from specjoule.windows.recompute import recompute_rows
from specjoule.windows.schema import (
    ARROW_SCHEMA,
    BY_NAME,
    COLLECTED,
    SCALARS,
)  # fmt: skip

Hashes = Mapping[Path, str]
"""The hash of the cell that a raw file has to hold; files that are not named are not looked at."""

ROWS_SCHEMA: pa.Schema = pa.schema(
    [ARROW_SCHEMA.field(name) for name in SCALARS] + [pa.field(c.name, c.type, nullable=c.nullable) for c in COLLECTED]
)
"""The collected table: every scalar column of the raw files plus the verdict."""

BATCH = 32
"""Raw files flattened at a time: enough to pay for the calls, little enough that a batch stays in the cache."""


def _projected(**nested: Sequence[str]) -> pa.Schema:
    """Return the raw schema, in its order: all scalars, and of the nested columns named here these fields."""
    found = []
    for field in ARROW_SCHEMA:
        if field.name in nested:
            inner = [f for f in field.type.value_type if f.name in nested[field.name]]
            found.append(pa.field(field.name, pa.list_(pa.struct(inner))))
        elif field.name in SCALARS:
            found.append(field)
    return pa.schema(found)


_JUDGED_SCHEMA = _projected(requests=JUDGED_FIELDS)
_WHOLE_SCHEMA = _projected(
    requests=(*REQUEST_FIELDS, *LIST_FIELDS, *JUDGED_FIELDS), refreshes=REFRESH_FIELDS, samples=SAMPLE_FIELDS
)
"""What is read of a raw file: nested columns only as far as a table or figure asks for them."""


@dataclass(frozen=True)
class Collected:
    """A block's tables."""

    rows: pa.Table
    """Of `ROWS_SCHEMA`."""
    nested: Nested


def collect(
    files: Iterable[Path],
    raw_root: Path,
    rules: ValidityConfig,
    drifts: Drifts | None = None,
    hashes: Hashes | None = None,
) -> Collected:
    """Read the raw `files` of a block once; return its rows with validity and reasons, and its nested frames.

    `drifts` are the block record's; without them they are computed from the rows. Where the drift is beyond the limit
    every row of that segment is invalid; where it is unknown (no closing plain) rows keep their verdict and the drift
    is null. Raises StoreError naming a file that cannot be read, lacks a column, or is not of the cell that `hashes`
    says.
    """
    rows, nested = [], []
    for table, names in _batches(files, raw_root, _WHOLE_SCHEMA, hashes):
        rows.append(_judged(table, names, rules))
        nested.append(flatten(table))
    return _finished(rows, nested, rules, drifts)


def collect_files(files: Iterable[Path], raw_root: Path, rules: ValidityConfig, drifts: Drifts | None) -> pa.Table:
    """As `collect`, the rows alone; reads no more of the nested columns than the verdict needs."""
    rows = [_judged(table, names, rules) for table, names in _batches(files, raw_root, _JUDGED_SCHEMA)]
    return _with_drift(pa.concat_tables(rows) if rows else ROWS_SCHEMA.empty_table(), rules, drifts)


def collect_recomputed(
    files: Iterable[Path],
    raw_root: Path,
    rules: ValidityConfig,
    drifts: Drifts | None,
    calibrations: Callable[[str | None], Calibration | None],
    hashes: Hashes | None = None,
) -> tuple[Collected, list[float]]:
    """As `collect`, with every energy computed again from its stored trace; raw files stay as they are.

    `calibrations` gives the present calibration of a board by its UUID, or None to keep the lag a row was measured
    with. Also returns the relative change of every window's energy that is known before and after.
    """
    judged, nested, changes = [], [], []
    for file in files:
        whole = _filled(read_window_table(file), file)
        _refuse_other_cell(file, whole, hashes)
        rows = whole.to_pylist()
        for row, again in zip(rows, recompute_rows(rows, calibrations(rows[0]["gpu_uuid"])), strict=True):
            if again is not None:
                row.update(again.columns)
                if again.relative_change is not None:
                    changes.append(again.relative_change)
        table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
        judged.append(_judged(table, [_name(file, raw_root)] * len(table), rules))
        nested.append(flatten(table))
    return _finished(judged, nested, rules, drifts), changes


def _finished(rows: list[pa.Table], nested: list[Nested], rules: ValidityConfig, drifts: Drifts | None) -> Collected:
    if not rows:
        return Collected(ROWS_SCHEMA.empty_table(), flatten(_WHOLE_SCHEMA.empty_table()))
    frames = combine(nested)
    whole = Nested(**{name: getattr(frames, name) for name in PARTS if name != "timeline"},
                   timeline=thin_timeline(frames.timeline))  # fmt: skip
    return Collected(_with_drift(pa.concat_tables(rows), rules, drifts), whole)


def _batches(
    files: Iterable[Path], raw_root: Path, schema: pa.Schema, hashes: Hashes | None = None
) -> Iterator[tuple[pa.Table, list[str]]]:
    """Yield the files' tables, `BATCH` files at a time, with the name of each row's file."""
    tables: list[pa.Table] = []
    names: list[str] = []
    for file in files:
        table = _filled(read_columns(file, schema), file)
        _refuse_other_cell(file, table, hashes)
        tables.append(table)
        names += [_name(file, raw_root)] * len(table)
        if len(tables) == BATCH:
            yield pa.concat_tables(tables).combine_chunks(), names
            tables, names = [], []
    if tables:
        yield pa.concat_tables(tables).combine_chunks(), names


def _filled(table: pa.Table, file: Path) -> pa.Table:
    """Return the table, which must have a row: a cell without one would be neither counted nor excluded."""
    if len(table):
        return table
    raise StoreError(f"{file}: holds no row; delete it: the next run makes it anew from the store")


def _refuse_other_cell(file: Path, table: pa.Table, hashes: Hashes | None) -> None:
    """Raise StoreError where the file holds windows of another cell than the one whose place it has.

    Paths do not name every setting: what lies at a cell's path may have been measured under other ones.
    """
    wanted = hashes.get(file) if hashes is not None else None
    others = sorted(set(table["cell_hash"].to_pylist()) - {wanted}) if wanted is not None else []
    if others:
        raise StoreError(
            f"{file}: holds windows of the cell {others[0]}, but the study's cell at this path is {wanted}: they were "
            "measured under other settings; remove the file and run snakemake, which takes the cell from its store or "
            "measures it"
        )


def _name(file: Path, raw_root: Path) -> str:
    return str(file.relative_to(raw_root)) if file.is_relative_to(raw_root) else str(file)


def read_columns(file: Path, schema: pa.Schema) -> pa.Table:
    """Read the columns of `schema` (nested ones by their fields) from a raw file of this or an earlier release.

    A column or field that the file does not have is null. Raises StoreError where it must not be null or is of
    another type.
    """
    table = read_window_table(file, _column_paths(schema))
    return conformed(table, schema, file).replace_schema_metadata(None)


@lru_cache(maxsize=8)
def _column_paths(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names by which Parquet knows the columns of a schema, fields of nested ones each."""
    out: list[str] = []
    for field in schema:
        nested = pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type)
        out += [f"{field.name}.list.element.{f.name}" for f in field.type.value_type] if nested else [field.name]
    return tuple(out)


def _judged(table: pa.Table, names: list[str], rules: ValidityConfig) -> pa.Table:
    """Return the scalar rows with their verdict; the block's drift is still to come."""
    _refuse_unknown(table, names)
    verdicts = judge_table(table, rules)
    added = [
        pa.array([str(v.validity) for v in verdicts], pa.string()),
        pa.array([",".join(str(r) for r in v.reasons) or None for v in verdicts], pa.string()),
        pa.nulls(len(table), pa.float64()),
        pa.array(names, pa.string()),
    ]
    return pa.Table.from_arrays([*table.select(list(SCALARS)).columns, *added], schema=ROWS_SCHEMA)


KNOWN_WORDS: dict[str, tuple[str, ...]] = {
    "status": tuple(s.value for s in Status),
    "window": ("generation", "decode"),
    "role": ("cell", "reference"),
    "reason": tuple(r.value for r in Reason),
    "flags": tuple(r.value for r in Reason),
}
"""The words that these columns may hold; a row with another one can neither be counted nor excluded rightly."""


def _refuse_unknown(table: pa.Table, names: Sequence[str]) -> None:
    """Raise StoreError naming the file of the first row with an unknown word, or with a null that must not be."""
    for column, words in KNOWN_WORDS.items():
        values, rows = table[column].combine_chunks(), np.arange(len(table))
        if pa.types.is_list(values.type):
            values, rows = pc.list_flatten(values), pc.list_parent_indices(values).to_numpy()
        known = pc.is_in(values, value_set=pa.array(words)).to_numpy(zero_copy_only=False)
        if column == "reason":
            known |= values.is_null().to_numpy(zero_copy_only=False)
        if not known.all():
            at = int(np.flatnonzero(~known)[0])
            raise StoreError(
                f"{names[int(rows[at])]}: {column} '{values[at].as_py()}' is not known to this release; if a newer one "
                "wrote the file, upgrade specjoule"
            )
    for column in SCALARS:
        if not BY_NAME[column].nullable and table[column].null_count:
            at = int(np.flatnonzero(table[column].is_null().to_numpy())[0])
            raise StoreError(f"{names[at]}: column '{column}' is null in a row, and must not be")


def _with_drift(rows: pa.Table, rules: ValidityConfig, drifts: Drifts | None) -> pa.Table:
    known = drifts_of_rows(rows) if drifts is None else drifts
    keys = zip(*(rows[name].to_pylist() for name in ("segment_id", "capture", "locked_mhz")), strict=True)
    found = [known.get(key) for key in keys]
    drift = np.array([np.nan if d is None else d for d in found], dtype=np.float64)
    measured = pc.not_equal(rows["validity"], str(Validity.NOT_MEASURED)).to_numpy(zero_copy_only=False)
    beyond = pa.array(np.array([beyond_limit(d, rules) for d in found], dtype=bool) & measured)
    code = str(Reason.BLOCK_DRIFT)
    reasons = rows["validity_reason"]
    more = pc.fill_null(pc.binary_join_element_wise(reasons, code, ","), code)
    changed = {
        "validity": pc.if_else(beyond, str(Validity.INVALID), rows["validity"]),
        "validity_reason": pc.if_else(beyond, more, reasons),
        "block_drift": pa.array(drift, from_pandas=True),
    }
    for name, column in changed.items():
        rows = rows.set_column(rows.schema.get_field_index(name), ROWS_SCHEMA.field(name), column)
    return rows


def drifts_of_rows(rows: pa.Table) -> dict[tuple[str, bool, int | None], float | None]:
    """Return the drift by (segment, capture, locked clock) where no block record is at hand, as a record has it.

    Median over the valid attempts of the closing plain launch of J/token over that of the same cell's first valid
    attempt on the same board, minus 1. A segment without one is left out.
    """
    keys = ["segment_id", "capture", "locked_mhz"]
    attempt = ["cell_hash", "gpu_uuid", "role", "attempt", "launch"]
    columns = [*keys, *attempt, "validity", "energy_j", "committed_tokens"]
    plain = rows.filter(pc.and_(pc.equal(rows["window"], "generation"), pc.equal(rows["scheme"], "plain")))
    frame = plain.select(columns).to_pandas()
    frame["valid"] = frame["validity"] == str(Validity.VALID)
    each = frame.groupby([*keys, *attempt], dropna=False).agg(
        energy_j=("energy_j", "sum"), tokens=("committed_tokens", "sum"), valid=("valid", "all")
    ).reset_index()  # fmt: skip
    each = each.loc[each["valid"] & (each["tokens"] > 0)]
    each["e"] = each["energy_j"] / each["tokens"]
    same = [*keys, "cell_hash", "gpu_uuid"]
    first = each.loc[each["role"] == "cell"].drop_duplicates(same)
    closing = each.loc[each["role"] == "reference"]
    both = closing.merge(first, on=same, suffixes=("", "_first"))
    both["ratio"] = both["e"] / both["e_first"]
    ratios = both.groupby(keys, dropna=False)["ratio"].median()
    return {
        (str(segment), bool(capture), None if pd.isna(mhz) else int(mhz)): float(ratio) - 1.0
        for (segment, capture, mhz), ratio in ratios.items()
    }


# -- the tables on disk


def write_rows(table: pa.Table, path: Path) -> None:
    """Write a collected table atomically."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def write_collected(collected: Collected, rows: Path, parts: Mapping[str, Path]) -> None:
    """Write a block's tables atomically, each to its own file; `parts` maps the names of `PARTS` to paths.

    The rows come last: where they are, the others are.
    """
    for name in PARTS:
        table = pa.Table.from_pandas(getattr(collected.nested, name), preserve_index=False)
        write_rows(table.replace_schema_metadata(None), parts[name])
    write_rows(collected.rows, rows)


def read_rows(paths: Sequence[Path]) -> Any:
    """Return collected tables as one pandas frame, in order. Raises StoreError."""
    return _read(paths, ROWS_SCHEMA).to_pandas()


def frame_of(rows: pa.Table) -> pd.DataFrame:
    """Return collected rows for the analysis: lists of codes as comma-separated words, a tenth as large.

    The table is used up.
    """
    for at, field in enumerate(rows.schema):
        if pa.types.is_list(field.type):
            words = pc.binary_join(rows[field.name], ",")
            rows = rows.set_column(at, field.name, pc.if_else(pc.equal(words, ""), None, words))
    return _used_up(rows)


def _used_up(table: pa.Table) -> pd.DataFrame:
    """Return the frame of a table that nobody needs any more, and give its memory back."""
    frame: pd.DataFrame = table.to_pandas(self_destruct=True, split_blocks=True)
    del table
    pa.default_memory_pool().release_unused()
    return frame


def give_memory_back() -> None:
    """Let Arrow take its memory from the system's allocator in this process and its children.

    Its own pool keeps what it freed: a tenth of the peak of a study of 14,000 cells, read block by block.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def read_frame(paths: Sequence[Path]) -> pd.DataFrame:
    """Return collected tables as `frame_of` gives them. Raises StoreError."""
    return frame_of(_read(paths, ROWS_SCHEMA))


def _read(paths: Sequence[Path], empty: pa.Schema | None = None) -> pa.Table:
    tables = []
    for path in paths:
        try:
            tables.append(pq.ParquetFile(path).read(use_threads=False))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise StoreError(f"{path}: cannot be read as a collected table ({str(error).splitlines()[0]})") from error
    # An empty frame of a block in which nothing ran may lack types.
    return pa.concat_tables(tables, promote_options="permissive") if tables else (empty or pa.schema([])).empty_table()


class StoredNested:
    """`Nested` of several blocks from disk; a frame is read when it is first asked for, and kept."""

    def __init__(self, parts: Mapping[str, Sequence[Path]]) -> None:
        self._parts = parts
        self._read: dict[str, pd.DataFrame] = {}

    def files(self, name: str) -> Sequence[Path]:
        """Return the files of one of `PARTS`."""
        return self._parts[name]

    def forget(self) -> None:
        """Let go of the frames read so far; whoever asks again reads again."""
        self._read.clear()
        pa.default_memory_pool().release_unused()

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in PARTS:
            raise AttributeError(name)
        if name not in self._read:
            self._read[name] = _used_up(_read(self._parts[name]))
        return self._read[name]
