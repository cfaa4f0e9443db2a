"""Latency and realized batch of a wave, from chunk arrivals alone; pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specjoule.meters.base import F64, I64
from specjoule.windows.arrivals import Arrivals


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
class Running:
    """When each request that has a token ran: [start, end] ns."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True)
class RealizedBatch:
    """Requests running during a window: time-weighted mean, fewest and most."""

    mean: float
    minimum: int
    peak: int


def latency(arrivals: Arrivals, submit_ns: int) -> Latency:
    """Return the latency of a wave as its users saw it.

    itl_mean is the mean over requests of (last - first token time)/(tokens - 1). The percentiles are over the gaps
    between consecutive tokens of one user; tokens of one chunk arrive together, so a chunk of m tokens is one gap and
    m - 1 zeros: four tokens every 40 ms and one every 10 ms share the mean and differ in the percentiles.
    """
    if not arrivals.t_ns.size:
        return Latency(None, None, None, None, None, None)
    tokens = np.add.reduceat(arrivals.tokens, arrivals.starts)
    ttft_mean_ms = float(np.mean((arrivals.first_ns - submit_ns) / 1e6))
    each = np.repeat(arrivals.t_ns, arrivals.tokens)
    gaps = (each[1:] - each[:-1]) / 1e6
    between = np.cumsum(tokens)[:-1] - 1  # from one request's last token to the next one's first is no gap
    within = np.ones(len(gaps), dtype=bool)
    within[between[(between >= 0) & (between < len(gaps))]] = False
    every = gaps[within]
    if every.size == 0:
        return Latency(ttft_mean_ms, None, None, None, None, None)
    several = tokens > 1
    means = (arrivals.last_ns - arrivals.first_ns)[several] / (tokens[several] - 1) / 1e6
    p50, p95, p99 = _percentiles(every, (50, 95, 99))
    return Latency(ttft_mean_ms, float(np.mean(means)), p50, p95, p99, float(every.max()))


def _percentiles(values: F64, ranks: tuple[float, ...]) -> list[float]:
    """Return percentiles with linear interpolation, as `np.percentile` does, which takes five times as long a wave."""
    places = [rank / 100 * (values.size - 1) for rank in ranks]
    below = [int(place) for place in places]
    above = [min(i + 1, values.size - 1) for i in below]
    ordered = np.partition(values, sorted({*below, *above}))
    return [
        float(ordered[i] + (ordered[j] - ordered[i]) * (place - i))
        for place, i, j in zip(places, below, above, strict=True)
    ]


def running_intervals(arrivals: Arrivals, submit_ns: int) -> Running:
    """Return when each request ran.

    From submission (its prefill is work on it) to its last chunk, unless its first token came only after another
    request had ended: then it was queued, and ran from its first token on.
    """
    first, last = arrivals.first_ns, arrivals.last_ns
    if not last.size:
        return Running(first, last)
    queued = first > last.min()
    return Running(np.where(queued, first, submit_ns), last)


def realized_batch(running: Running, start_ns: int, end_ns: int) -> RealizedBatch | None:
    """Return the requests running between `start_ns` and `end_ns`; None for an empty window."""
    if end_ns <= start_ns or not running.end_ns.size:
        return None
    changes = np.concatenate([running.start_ns, running.end_ns])
    inside = changes[(changes > start_ns) & (changes < end_ns)]
    edges = np.sort(np.concatenate([[start_ns], inside, [end_ns]]))
    edges = edges[np.concatenate([[True], edges[1:] > edges[:-1]])]
    lengths = edges[1:] - edges[:-1]
    # Whoever began by a stretch's left edge and did not end before its right one.
    begun = np.sort(running.start_ns).searchsorted(edges[:-1], "right")
    ended = np.sort(running.end_ns).searchsorted(edges[1:], "left")
    count = begun - ended
    return RealizedBatch(float(count @ lengths) / (end_ns - start_ns), int(count.min()), int(count.max()))


def constant_batch_interval(arrivals: Arrivals) -> tuple[int, int] | None:
    """Return (last first-token time, first end) ns between which every request runs and none is prefilling.

    None where a request has no token or the interval is empty.
    """
    if not arrivals.lengths.size or not arrivals.lengths.all():
        return None
    start, end = int(arrivals.first_ns.max()), int(arrivals.last_ns.min())
    return (start, end) if end > start else None


def tokens_between(arrivals: Arrivals, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (tokens, chunks) that arrived in (start_ns, end_ns], summed over requests."""
    inside = (arrivals.t_ns > start_ns) & (arrivals.t_ns <= end_ns)
    return int(arrivals.tokens[inside].sum()), int(np.count_nonzero(inside))
