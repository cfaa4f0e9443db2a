"""From the nested columns of raw files to flat frames: requests, acceptance, gaps, energy up to EOS, the power trace.

Columns, not rows: lists are flattened with their offsets, and neither a request nor a chunk becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
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
REFRESH_FIELDS: tuple[str, ...] = ("read_start_ns", "read_end_ns", "counter_j", "channel")
SAMPLE_FIELDS: tuple[str, ...] = ("t_ns", "channel", "value")
_HASHED = ("prompt_id", "output_digest", "document_id")

GAP_EDGES_MS: F64 = np.concatenate([[0.0], np.geomspace(0.1, 60_000.0, 231)])
"""Edges of the gap histogram, ms: zero-length gaps (tokens of one chunk) first, then 40 bins a decade."""
TIMELINE_CHANNELS: tuple[str, ...] = ("power_w", "sm_clock_mhz")
TIMELINE_POINTS = 4000
"""A segment's trace is thinned to about this many points a channel (at most twice as many)."""


@dataclass(frozen=True)
class Nested:
    """Flat frames of one block or study; each starts with `KEYS` (and `wave`) unless said otherwise."""

    requests: pd.DataFrame
    """One row per request: `REQUEST_FIELDS`, prompts and digests as 64-bit hashes."""
    acceptance: pd.DataFrame
    """One row per attempt and kept count: `kept`, `rounds` (before EOS or the limit cut)."""
    gaps: pd.DataFrame
    """One row per attempt and bin of `GAP_EDGES_MS`: `bin`, `gaps` (gaps between a user's tokens)."""
    to_eos: pd.DataFrame
    """One row per wave: `energy_j`, `committed_tokens`, `seconds` up to the batch's first EOS, if any (`cut`)."""
    timeline: pd.DataFrame
    """One row per thinned sample of a segment: `segment_id`, `kind` (`TIMELINE_CHANNELS`), `t_ns`, `value`."""


PARTS: tuple[str, ...] = tuple(f.name for f in fields(Nested))


def combine(parts: Sequence[Nested]) -> Nested:
    """Concatenate frames of several batches or blocks."""
    return Nested(*(pd.concat([getattr(p, name) for p in parts], ignore_index=True) for name in PARTS))


def flatten(table: pa.Table) -> Nested:
    """Flatten the generation rows of a raw table that has `KEYS`, `wave`, `window`, times and the nested columns.

    The timeline is not thinned yet: a segment lies in many files (`thin_timeline`).
    """
    holds = pc.and_(pc.equal(table["window"], "generation"), pc.is_valid(table["requests"]))
    rows = table.select([c for c in table.column_names if c not in ("requests", "refreshes", "samples")])
    rows = rows.filter(holds).combine_chunks()
    mask = np.asarray(holds.to_numpy(), dtype=bool)
    keys = rows.select([*KEYS, "wave"]).to_pandas()
    items, owner = _items_of(_array(table["requests"]), mask)
    requests = keys.iloc[owner].reset_index(drop=True)
    requests = requests.assign(**{name: _plain_column(items.field(name), name) for name in REQUEST_FIELDS})
    ids, attempts = _attempts(keys)
    chunks = _Chunks.of(items)
    return Nested(
        requests=requests,
        acceptance=_acceptance(attempts, ids[owner], items),
        gaps=_gaps(attempts, ids[owner], chunks),
        to_eos=_to_eos(rows, keys, _array(table["refreshes"]), np.flatnonzero(mask), items, owner, chunks),
        timeline=_samples(table, mask),
    )


def thin_timeline(timeline: pd.DataFrame, points: int = TIMELINE_POINTS) -> pd.DataFrame:
    """Sort each segment's samples by time and keep every so many."""
    parts = []
    for _, part in timeline.groupby(["segment_id", "kind"], sort=True):
        data = part.sort_values("t_ns", kind="stable")
        parts.append(data.iloc[:: max(1, len(data) // points)])
    return pd.concat(parts, ignore_index=True) if parts else timeline


def _array(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _items_of(lists: Any, mask: npt.NDArray[np.bool_]) -> tuple[Any, I64]:
    """Return the items of the lists where `mask` holds, and for each item the number of its list among those."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    if lengths[~mask].any():  # only generation rows hold requests; whatever else there is does not count
        lists = lists.filter(pa.array(mask))
        offsets = lists.offsets.to_numpy().astype(np.int64)
        lengths = np.diff(offsets)
    else:
        lengths = lengths[mask]
    items = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return items, np.repeat(np.arange(len(lengths)), lengths)


def _plain_column(values: Any, name: str) -> Any:
    if name in _HASHED:
        if values.null_count == len(values):
            return np.zeros(len(values), dtype=np.uint64)
        coded = values.dictionary_encode()
        words = coded.dictionary.to_numpy(zero_copy_only=False).astype(object)
        hashed = pd.util.hash_array(words, categorize=False)
        codes = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), hashed[codes], np.uint64(0))
    if pa.types.is_string(values.type):
        return values.to_pandas().astype("str")
    if pa.types.is_boolean(values.type):
        return pc.cast(values, pa.float32()).to_numpy(zero_copy_only=False)
    return values.to_numpy(zero_copy_only=False).astype(np.float32)


def list_field(items: Any, name: str) -> tuple[I64, npt.NDArray[Any]]:
    """Return lengths per request and the flat values of a list field (null lists count as empty)."""
    return _flat(items.field(name))


def _flat(lists: Any) -> tuple[I64, npt.NDArray[Any]]:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths, pc.list_flatten(lists).to_numpy(zero_copy_only=False)


def sums(values: npt.NDArray[Any], lengths: I64) -> npt.NDArray[Any]:
    """Return the sum of each list of a flat array; 0 for an empty one."""
    total = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    return np.asarray(total[ends] - total[ends - lengths])


@dataclass(frozen=True)
class _Chunks:
    """Chunk arrivals of all requests, flat."""

    lengths: I64
    starts: I64
    stamps: I64
    tokens: I64

    @staticmethod
    def of(items: Any) -> _Chunks:
        times, counts = _whole(items.field("chunk_t_ns"), items.field("chunk_tokens"))
        (lengths, stamps), (_, tokens) = _flat(times), _flat(counts)
        return _Chunks(lengths, np.cumsum(lengths) - lengths, stamps, tokens)


def _whole(times: Any, counts: Any) -> tuple[Any, Any]:
    """Return both lists of every request, null where a stamp or a count is missing: such a row is judged invalid."""
    same = pc.fill_null(pc.equal(pc.list_value_length(times), pc.list_value_length(counts)), False)
    if pc.all(same).as_py() is not False and not pc.list_flatten(times).null_count + pc.list_flatten(counts).null_count:
        return times, counts
    whole = pa.array(
        equal and None not in t and None not in n
        for equal, t, n in zip(same.to_pylist(), times.to_pylist(), counts.to_pylist(), strict=True)
    )
    return tuple(pc.if_else(whole, lists, pa.nulls(len(lists), lists.type)) for lists in (times, counts))  # type: ignore[return-value]


def _attempts(keys: pd.DataFrame) -> tuple[I64, pd.DataFrame]:
    columns = list(KEYS)
    ids = np.asarray(keys.groupby(columns, dropna=False, sort=False).ngroup(), dtype=np.int64)
    return ids, keys[columns].drop_duplicates().reset_index(drop=True)


def _positions(lengths: I64) -> I64:
    """0, 1, 2 ... within each list."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)


def _counted(attempts: pd.DataFrame, total: F64, names: tuple[str, str]) -> pd.DataFrame:
    """Return the non-zero counts of an (attempts x values) table as rows."""
    attempt, value = np.nonzero(total)
    out = attempts.iloc[attempt].reset_index(drop=True)
    return out.assign(**{names[0]: value, names[1]: total[attempt, value]})


def _acceptance(attempts: pd.DataFrame, attempt: I64, items: Any) -> pd.DataFrame:
    lengths, counts = list_field(items, "acceptance_histogram")
    kept = _positions(lengths)
    size = int(kept.max()) + 1 if len(kept) else 1
    total = np.bincount(np.repeat(attempt * size, lengths) + kept, weights=counts, minlength=len(attempts) * size)
    return _counted(attempts, total.reshape(-1, size).astype(np.float64), ("kept", "rounds"))


def _gaps(attempts: pd.DataFrame, attempt: I64, chunks: _Chunks) -> pd.DataFrame:
    """Gaps between tokens of one user: the first token of a chunk waits since the last chunk, the others not at all."""
    size = len(GAP_EDGES_MS) - 1
    later = np.ones(len(chunks.stamps), dtype=bool)
    later[chunks.starts[chunks.lengths > 0]] = False
    gap_ms = np.diff(chunks.stamps, prepend=chunks.stamps[:1])[later] / 1e6
    which = np.searchsorted(GAP_EDGES_MS[1:-1], gap_ms, side="right")
    which += np.repeat(attempt * size, np.maximum(chunks.lengths - 1, 0))
    total = np.bincount(which, minlength=len(attempts) * size).reshape(-1, size).astype(np.float64)
    same_chunk = sums(np.maximum(chunks.tokens.astype(np.int64) - 1, 0), chunks.lengths)
    total[:, 0] += np.bincount(attempt, weights=same_chunk, minlength=len(attempts))
    return _counted(attempts, total, ("bin", "gaps"))


def _to_eos(
    rows: pa.Table, keys: pd.DataFrame, refreshes: Any, places: I64, items: Any, owner: I64, chunks: _Chunks
) -> pd.DataFrame:
    """Energy and tokens of each wave from submission to the first end of sequence in the batch (else to its end).

    `places` are the positions of `rows` in the table that `refreshes` belongs to.
    """
    eos = items.field("first_eos_position").to_numpy(zero_copy_only=False).astype(np.float64)
    first = _first_stamp_beyond(chunks, eos)
    start, end, energy = (_number(rows, n) for n in ("t_start_ns", "t_end_ns", "energy_j"))
    cut_at = np.full(len(keys), np.inf)
    np.minimum.at(cut_at, owner, first)
    cut = np.isfinite(cut_at) & (cut_at < end)
    stop = np.where(cut, cut_at, end)
    delivered = np.bincount(owner, weights=_tokens_until(chunks, stop[owner]), minlength=len(keys))
    share = _energy_share(refreshes, places, start, end, stop)
    return keys.assign(
        cut=cut, committed_tokens=delivered, seconds=(stop - start) / 1e9, energy_j=energy * share,
    )  # fmt: skip


def _first_stamp_beyond(chunks: _Chunks, position: F64) -> F64:
    """When each request's token after `position` arrived, ns; infinite where there is no such token (or NaN asked)."""
    first = np.full(len(position), np.inf)
    if len(chunks.stamps):
        total = np.cumsum(chunks.tokens, dtype=np.float64)
        before = np.where(chunks.starts > 0, total[np.maximum(chunks.starts - 1, 0)], 0.0)
        at = np.searchsorted(total, position + before, side="right")  # NaN sorts behind everything
        there = at < chunks.starts + chunks.lengths
        first[there] = chunks.stamps[at[there]]
    return first


def _tokens_until(chunks: _Chunks, stop: F64) -> F64:
    """Tokens of each request that arrived until its `stop`, ns."""
    out = sums(chunks.tokens.astype(np.int64), chunks.lengths).astype(np.float64)
    latest = np.full(len(stop), -np.inf)
    some = chunks.lengths > 0
    latest[some] = np.maximum.reduceat(chunks.stamps, chunks.starts[some]) if some.any() else 0
    late = np.flatnonzero(~(latest <= stop) & some)
    lengths = chunks.lengths[late]
    at = np.repeat(chunks.starts[late], lengths) + _positions(lengths)
    inside = chunks.stamps[at] <= np.repeat(stop[late], lengths)
    out[late] = sums(np.where(inside, chunks.tokens[at], 0).astype(np.int64), lengths)
    return out


def _number(rows: pa.Table, name: str) -> F64:
    return np.asarray(pc.cast(rows[name], pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _energy_share(lists: Any, places: I64, start: F64, end: F64, stop: F64) -> F64:
    """Share of the window's energy before `stop`: the counter interpolated at start, stop and end."""
    out = np.where(stop >= end, 1.0, np.nan)
    cut = np.flatnonzero(stop < end)
    if not len(cut):
        return out
    offsets, trace = lists.offsets.to_numpy(), lists.values
    board = pc.fill_null(pc.equal(trace.field("channel"), "board"), False).to_numpy(zero_copy_only=False)
    first, last, counter = (trace.field(n).to_numpy(zero_copy_only=False) for n in REFRESH_FIELDS[:3])
    middle = (first + last) / 2.0
    for i in cut:
        mine = slice(int(offsets[places[i]]), int(offsets[places[i] + 1]))
        here = board[mine]
        if not here.any() or len(here) < 2:
            continue
        at = np.interp([start[i], stop[i], end[i]], middle[mine][here], counter[mine][here])
        if at[2] > at[0]:
            out[i] = (at[1] - at[0]) / (at[2] - at[0])
    return out


def _samples(table: pa.Table, mask: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Samples of power and clock of the rows where `mask` holds and which have a window."""
    lists = _array(table["samples"])
    use = mask & table["t_start_ns"].is_valid().to_numpy()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    flat = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    segment = _array(table["segment_id"]).dictionary_encode()
    codes = np.repeat(np.where(use, segment.indices.to_numpy(), -1), lengths)
    channel = flat.field("channel")
    t_ns, value = (flat.field(n).to_numpy(zero_copy_only=False) for n in ("t_ns", "value"))
    parts = []
    for kind in TIMELINE_CHANNELS:
        mine = pc.fill_null(pc.equal(channel, kind), False).to_numpy(zero_copy_only=False) & (codes >= 0)
        names = segment.dictionary.to_pandas().astype("str")
        parts.append(
            pd.DataFrame({
                "segment_id": names.iloc[codes[mine]].reset_index(drop=True), "kind": kind, "t_ns": t_ns[mine],
                "value": value[mine],
            })
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)
