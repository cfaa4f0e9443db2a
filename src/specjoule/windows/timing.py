"""Latency and realized batch of a wave, from chunk arrivals alone; pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from specjoule.engines.base import RequestResult


@dataclass(frozen=True)
class Latency:
    """Latency over the requests of a wave, ms; null where no request has two tokens."""

    ttft_mean_ms: float | None
    itl_mean_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    stall_max_ms: float | None


@dataclass(frozen=True)
class RealizedBatch:
    """Requests running during a window: time-weighted mean, fewest and most."""

    mean: float
    minimum: int
    peak: int


def latency(requests: Sequence[RequestResult], submit_ns: int) -> Latency:
    """Return the latency of a wave as its users saw it.

    itl_mean is the mean over requests of (last - first token time)/(tokens - 1). The percentiles are over the gaps
    between consecutive tokens of one user; tokens of one chunk arrive together, so a chunk of m tokens is one gap and
    m - 1 zeros: four tokens every 40 ms and one every 10 ms share the mean and differ in the percentiles.
    """
    some = [r for r in requests if r.chunk_t_ns]
    if not some:
        return Latency(None, None, None, None, None, None)
    lengths = np.array([len(r.chunk_t_ns) for r in some])
    chunks = int(lengths.sum())
    times = np.fromiter(chain.from_iterable(r.chunk_t_ns for r in some), dtype=np.float64, count=chunks)
    counts = np.fromiter(chain.from_iterable(r.chunk_tokens for r in some), dtype=np.int64, count=chunks)
    starts = np.cumsum(lengths) - lengths
    first, last = times[starts], times[starts + lengths - 1]
    tokens = np.add.reduceat(counts, starts)
    ttft_mean_ms = float(np.mean((first - submit_ns) / 1e6))
    gaps = np.diff(np.repeat(times, counts)) / 1e6
    between = np.cumsum(tokens)[:-1] - 1  # from one request's last token to the next one's first is no gap
    within = np.ones(len(gaps), dtype=bool)
    within[between[(between >= 0) & (between < len(gaps))]] = False
    every = gaps[within]
    if every.size == 0:
        return Latency(ttft_mean_ms, None, None, None, None, None)
    several = tokens > 1
    means = (last - first)[several] / (tokens[several] - 1) / 1e6
    p50, p95, p99 = (float(v) for v in np.percentile(every, [50, 95, 99]))
    return Latency(ttft_mean_ms, float(np.mean(means)), p50, p95, p99, float(every.max()))


def running_intervals(requests: Sequence[RequestResult], submit_ns: int) -> list[tuple[int, int]]:
    """Return [start, end] ns in which each request ran.

    From submission (its prefill is work on it) to its last chunk, unless its first token came only after another
    request had ended: then it was queued, and ran from its first token on.
    """
    ends = [r.chunk_t_ns[-1] for r in requests if r.chunk_t_ns]
    earliest_end = min(ends, default=submit_ns)
    intervals = []
    for request in requests:
        if request.chunk_t_ns:
            first = request.chunk_t_ns[0]
            queued = first > earliest_end and len(requests) > 1
            intervals.append((first if queued else submit_ns, request.chunk_t_ns[-1]))
    return intervals


def realized_batch(intervals: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> RealizedBatch | None:
    """Return the requests running between `start_ns` and `end_ns`; None for an empty window."""
    if end_ns <= start_ns or not intervals:
        return None
    edges = sorted({start_ns, end_ns, *(t for pair in intervals for t in pair if start_ns < t < end_ns)})
    lengths = np.diff(np.asarray(edges, dtype=np.float64))
    running = np.array([sum(a <= left and b >= right for a, b in intervals) for left, right in pairwise(edges)])
    return RealizedBatch(float((running * lengths).sum() / lengths.sum()), int(running.min()), int(running.max()))


def constant_batch_interval(requests: Sequence[RequestResult]) -> tuple[int, int] | None:
    """Return (last first-token time, first end) ns between which every request runs and none is prefilling.

    None where a request has no token or the interval is empty.
    """
    if not requests or any(not r.chunk_t_ns for r in requests):
        return None
    start = max(r.chunk_t_ns[0] for r in requests)
    end = min(r.chunk_t_ns[-1] for r in requests)
    return (start, end) if end > start else None


def tokens_between(requests: Sequence[RequestResult], start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (tokens, chunks) that arrived in (start_ns, end_ns], summed over requests."""
    tokens = chunks = 0
    for request in requests:
        first, beyond = (bisect_right(request.chunk_t_ns, edge) for edge in (start_ns, end_ns))
        tokens += sum(request.chunk_tokens[first:beyond])
        chunks += max(0, beyond - first)
    return tokens, chunks
