"""Latency and realized batch of a wave, from chunk arrivals alone; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    first, means, gaps = [], [], []
    for request in requests:
        if not request.chunk_t_ns:
            continue
        times = np.asarray(request.chunk_t_ns, dtype=np.float64)
        counts = np.asarray(request.chunk_tokens)
        first.append((times[0] - submit_ns) / 1e6)
        if counts.sum() > 1:
            means.append((times[-1] - times[0]) / (counts.sum() - 1) / 1e6)
        tokens = np.repeat(times, counts)
        gaps.append(np.diff(tokens) / 1e6)
    every = np.concatenate(gaps) if gaps else np.empty(0)
    if every.size == 0:
        return Latency(float(np.mean(first)) if first else None, None, None, None, None, None)
    p50, p95, p99 = (float(v) for v in np.percentile(every, [50, 95, 99]))
    return Latency(float(np.mean(first)), float(np.mean(means)), p50, p95, p99, float(every.max()))


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
        times = np.asarray(request.chunk_t_ns)
        inside = (times > start_ns) & (times <= end_ns)
        tokens += int(np.asarray(request.chunk_tokens)[inside].sum())
        chunks += int(inside.sum())
    return tokens, chunks
