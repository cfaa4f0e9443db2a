"""From the nested columns of raw files to flat frames: requests, acceptance, gaps between chunks, energy up to EOS.

Columns, not rows: lists are flattened with their offsets, and no request becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

KEYS: tuple[str, ...] = ("cell_hash", "segment_id", "attempt", "launch", "role")
"""What joins these frames to cells and pairs."""

REQUEST_FIELDS: tuple[str, ...] = (
    "prompt_id", "document_id", "prompt_tokens", "committed_tokens", "first_eos_position", "answer_language",
    "language_ok", "degenerate", "rounds", "accepted_draft_tokens", "cut_tokens", "output_digest",
)  # fmt: skip
LIST_FIELDS: tuple[str, ...] = ("acceptance_histogram", "chunk_t_ns", "chunk_tokens")

GAP_EDGES_MS: F64 = np.concatenate([[0.0], np.geomspace(0.1, 60_000.0, 231)])
"""Edges of the gap histogram, ms: zero-length gaps (tokens of one chunk) first, then 40 bins a decade."""


@dataclass(frozen=True)
class Nested:
    """Flat frames of one block or study; each starts with `KEYS` (and `wave`)."""

    requests: pd.DataFrame
    """One row per request: `REQUEST_FIELDS`, prompts and digests as 64-bit hashes."""
    acceptance: pd.DataFrame
    """One row per attempt and kept count: `kept`, `rounds` (before EOS or the limit cut)."""
    gaps: pd.DataFrame
    """One row per attempt and bin of `GAP_EDGES_MS`: `bin`, `gaps` (gaps between a user's tokens)."""
    to_eos: pd.DataFrame
    """One row per wave: `energy_j`, `committed_tokens`, `seconds` up to the batch's first EOS, if any (`cut`)."""


def combine(parts: list[Nested]) -> Nested:
    """Concatenate frames of several blocks."""
    return Nested(*(pd.concat([getattr(p, f.name) for p in parts], ignore_index=True) for f in fields(Nested)))


def flatten(table: pa.Table) -> Nested:
    """Flatten the generation rows of a raw table that has `KEYS`, `wave`, `window`, times, `requests`, `refreshes`."""
    rows = table.filter(pc.equal(table["window"], "generation"))
    rows = rows.filter(pc.is_valid(rows["requests"])).combine_chunks()
    keys = rows.select([*KEYS, "wave"]).to_pandas()
    lists = _array(rows["requests"])
    offsets = lists.offsets.to_numpy().astype(np.int64)
    items = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(lists) else lists.values
    owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
    requests = keys.iloc[owner].reset_index(drop=True)
    for name in REQUEST_FIELDS:
        requests[name] = _plain_column(items.field(name), name)
    return Nested(
        requests=requests,
        acceptance=_acceptance(keys, items, owner),
        gaps=_gaps(keys, items, owner),
        to_eos=_to_eos(rows, keys, items, owner),
    )


def _array(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _plain_column(values: Any, name: str) -> Any:
    if name in ("prompt_id", "output_digest", "document_id"):
        if name == "document_id" and values.null_count == len(values):
            return np.zeros(len(values), dtype=np.uint64)
        hashed = pd.util.hash_array(values.to_numpy(zero_copy_only=False).astype(object), categorize=True)
        return np.where(pc.is_valid(values).to_numpy(zero_copy_only=False), hashed, 0)
    if pa.types.is_string(values.type):
        return values.dictionary_encode().to_pandas()
    if pa.types.is_boolean(values.type):
        return pc.cast(values, pa.float32()).to_numpy(zero_copy_only=False)
    return values.to_numpy(zero_copy_only=False).astype(np.float32)


def _list_field(items: Any, name: str) -> tuple[I64, npt.NDArray[Any]]:
    """Return lengths per request and the flat values of a list field (null lists count as empty)."""
    lists = items.field(name)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths, pc.list_flatten(lists).to_numpy(zero_copy_only=False)


def _attempts(keys: pd.DataFrame) -> tuple[I64, pd.DataFrame]:
    columns = list(KEYS)
    ids = np.asarray(keys.groupby(columns, dropna=False, sort=False).ngroup(), dtype=np.int64)
    return ids, keys[columns].drop_duplicates().reset_index(drop=True)


def _positions(lengths: I64) -> I64:
    """0, 1, 2 ... within each list."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)


def _counted(attempts: pd.DataFrame, attempt: I64, value: I64, weight: F64, names: tuple[str, str]) -> pd.DataFrame:
    size = int(value.max()) + 1 if len(value) else 1
    total = np.bincount(attempt * size + value, weights=weight, minlength=len(attempts) * size)
    where = np.flatnonzero(total)
    out = attempts.iloc[where // size].reset_index(drop=True)
    return out.assign(**{names[0]: where % size, names[1]: total[where]})


def _acceptance(keys: pd.DataFrame, items: Any, owner: I64) -> pd.DataFrame:
    ids, attempts = _attempts(keys)
    lengths, counts = _list_field(items, "acceptance_histogram")
    attempt = np.repeat(ids[owner], lengths)
    return _counted(attempts, attempt, _positions(lengths), counts.astype(np.float64), ("kept", "rounds"))


def _gaps(keys: pd.DataFrame, items: Any, owner: I64) -> pd.DataFrame:
    """Gaps between tokens of one user: the first token of a chunk waits since the last chunk, the others not at all."""
    ids, attempts = _attempts(keys)
    lengths, stamps = _list_field(items, "chunk_t_ns")
    _, tokens = _list_field(items, "chunk_tokens")
    position = _positions(lengths)
    attempt = np.repeat(ids[owner], lengths)
    later = position > 0
    gap_ms = np.diff(stamps, prepend=stamps[:1])[later] / 1e6
    which = np.clip(np.searchsorted(GAP_EDGES_MS, gap_ms, side="right") - 1, 0, len(GAP_EDGES_MS) - 2)
    same_chunk = np.maximum(tokens.astype(np.float64) - 1.0, 0.0)
    value = np.concatenate([which, np.zeros(len(attempt), dtype=np.int64)]).astype(np.int64)
    weight = np.concatenate([np.ones(int(later.sum())), same_chunk])
    return _counted(attempts, np.concatenate([attempt[later], attempt]), value, weight, ("bin", "gaps"))


def _to_eos(rows: pa.Table, keys: pd.DataFrame, items: Any, owner: I64) -> pd.DataFrame:
    """Energy and tokens of each wave from submission to the first end of sequence in the batch (else to its end)."""
    lengths, stamps = _list_field(items, "chunk_t_ns")
    _, tokens = _list_field(items, "chunk_tokens")
    eos = items.field("first_eos_position").to_numpy(zero_copy_only=False).astype(np.float64)
    request = np.repeat(np.arange(len(owner)), lengths)
    cumulative = _running_sum(tokens.astype(np.float64), lengths)
    reached = cumulative > np.repeat(eos, lengths)  # false where there is no EOS (NaN)
    first = np.full(len(owner), np.inf)
    np.minimum.at(first, request[reached], stamps[reached].astype(np.float64))
    start, end, energy = (_number(rows, n) for n in ("t_start_ns", "t_end_ns", "energy_j"))
    cut_at = np.full(len(keys), np.inf)
    np.minimum.at(cut_at, owner, first)
    cut = np.isfinite(cut_at) & (cut_at < end)
    stop = np.where(cut, cut_at, end)
    inside = stamps <= np.repeat(stop[owner], lengths)
    delivered = np.bincount(np.repeat(owner, lengths)[inside], weights=tokens[inside], minlength=len(keys))
    share = _energy_share(rows, start, end, stop)
    return keys.assign(
        cut=cut, committed_tokens=delivered, seconds=(stop - start) / 1e9, energy_j=energy * share,
    )  # fmt: skip


def _running_sum(values: F64, lengths: I64) -> F64:
    total = np.cumsum(values)
    starts = np.cumsum(lengths) - lengths
    before = np.where(starts > 0, total[np.maximum(starts - 1, 0)], 0.0)
    return np.asarray(total - np.repeat(before, lengths), dtype=np.float64)


def _number(rows: pa.Table, name: str) -> F64:
    return np.asarray(pc.cast(rows[name], pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _energy_share(rows: pa.Table, start: F64, end: F64, stop: F64) -> F64:
    """Share of the window's energy before `stop`: the counter interpolated at start, stop and end."""
    lists = _array(rows["refreshes"])
    out = np.where(stop >= end, 1.0, np.nan)
    for i in np.flatnonzero(stop < end):
        trace = lists[int(i)].values
        if trace is None or len(trace) < 2:
            continue
        board = pc.equal(trace.field("channel"), "board").to_numpy(zero_copy_only=False)
        first, last = (trace.field(n).to_numpy(zero_copy_only=False)[board] for n in ("read_start_ns", "read_end_ns"))
        counter = trace.field("counter_j").to_numpy(zero_copy_only=False)[board]
        at = np.interp([start[i], stop[i], end[i]], (first + last) / 2.0, counter)
        if at[2] > at[0]:
            out[i] = (at[1] - at[0]) / (at[2] - at[0])
    return out


def read_nested(root: Path, files: Sequence[str], batch: int = 256) -> Nested:
    """Flatten the nested columns of raw files (names relative to `root`), `batch` files at a time.

    Files that are gone are left out: tables can be made from collected rows alone.
    """
    import pyarrow.parquet as pq

    columns = [*KEYS, "wave", "window", "t_start_ns", "t_end_ns", "energy_j"]
    columns += [f"requests.list.element.{f}" for f in (*REQUEST_FIELDS, *LIST_FIELDS)]
    columns += [f"refreshes.list.element.{f}" for f in ("read_start_ns", "read_end_ns", "counter_j", "channel")]
    present = [root / f for f in files if (root / f).exists()]
    parts = []
    for start in range(0, len(present), batch):
        tables = [pq.ParquetFile(f).read(columns=columns) for f in present[start : start + batch]]
        parts.append(flatten(pa.concat_tables(tables, promote_options="permissive").combine_chunks()))
    if not parts:
        empty = pd.DataFrame(columns=[*KEYS, "wave"])
        return Nested(empty, empty, empty, empty)
    return combine(parts)
