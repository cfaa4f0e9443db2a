"""Latency and realized batch from chunk arrivals: worked examples and properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.engines.base import RequestResult
from specjoule.windows.arrivals import Arrivals
from specjoule.windows.timing import (
    constant_batch_interval,
    latency,
    realized_batch,
    running_intervals,
    tokens_between,
)

MS = 1_000_000


def request(times_ms: list[float], counts: list[int], name: str = "p") -> RequestResult:
    committed = sum(counts)
    return RequestResult(
        prompt_id=name, prompt_tokens=3, committed_tokens=committed, finish_reason="length", first_eos_position=None,
        rounds=len(counts) - 1, proposed_tokens=0, accepted_draft_tokens=committed - len(counts),
        acceptance_histogram=None, cut_tokens=0, chunk_t_ns=tuple(round(t * MS) for t in times_ms),
        chunk_tokens=tuple(counts), cached_tokens=0, output_token_ids=(), text="",
    )  # fmt: skip


def test_four_tokens_every_40_ms_and_one_every_10_ms_share_the_mean_and_nothing_else() -> None:
    bursts = latency(Arrivals.of([request([10 + 40 * i for i in range(26)], [1] + [4] * 25)]), 0)
    steady = latency(Arrivals.of([request([10 + 10 * i for i in range(101)], [1] * 101)]), 0)
    assert bursts.itl_mean_ms == pytest.approx(10.0)
    assert steady.itl_mean_ms == pytest.approx(10.0)
    assert steady.itl_p50_ms == pytest.approx(10.0)
    assert bursts.itl_p50_ms == 0.0
    assert bursts.itl_p95_ms == pytest.approx(40.0)
    assert (bursts.stall_max_ms, steady.stall_max_ms) == (pytest.approx(40.0), pytest.approx(10.0))
    assert bursts.ttft_mean_ms == pytest.approx(10.0)


def test_one_token_has_no_gap_and_that_is_null_not_zero() -> None:
    one = latency(Arrivals.of([request([5], [1])]), 0)
    assert one.ttft_mean_ms == pytest.approx(5.0)
    assert one.itl_mean_ms is None
    assert one.stall_max_ms is None


def test_a_ragged_end_lowers_the_mean_batch_and_not_the_peak() -> None:
    requests = [request([10, 100], [1, 9], "a"), request([10, 50], [1, 9], "b")]
    batch = realized_batch(running_intervals(Arrivals.of(requests), 0), 0, 100 * MS)
    assert batch is not None
    assert (batch.mean, batch.minimum, batch.peak) == (pytest.approx(1.5), 1, 2)


def test_a_queued_request_does_not_run_before_its_first_token() -> None:
    requests = [request([10, 50], [1, 9], "a"), request([60, 100], [1, 9], "b")]
    batch = realized_batch(running_intervals(Arrivals.of(requests), 0), 0, 100 * MS)
    assert batch is not None
    assert batch.peak == 1


def test_the_constant_batch_starts_at_the_last_first_token_and_ends_with_the_first_end() -> None:
    requests = [request([10, 60, 100], [1, 1, 1], "a"), request([20, 60, 90], [1, 1, 1], "b")]
    assert constant_batch_interval(Arrivals.of(requests)) == (20 * MS, 90 * MS)
    assert constant_batch_interval(Arrivals.of([requests[0], request([150, 200], [1, 1], "c")])) is None
    assert constant_batch_interval(Arrivals.of([])) is None


def test_tokens_count_by_their_arrival_open_at_the_start_and_closed_at_the_end() -> None:
    r = request([10, 20, 30], [1, 4, 2])
    assert tokens_between(Arrivals.of([r]), 10 * MS, 30 * MS) == (6, 2)
    assert tokens_between(Arrivals.of([r]), 9 * MS, 20 * MS) == (5, 2)


def test_a_request_without_a_token_is_null_and_ends_the_constant_batch() -> None:
    requests = [request([], [], "silent"), request([10, 30], [1, 2], "b")]
    assert latency(Arrivals.of(requests), 0).ttft_mean_ms == pytest.approx(10.0)
    assert constant_batch_interval(Arrivals.of(requests)) is None
    assert latency(Arrivals.of(requests[:1]), 0).ttft_mean_ms is None
    assert realized_batch(running_intervals(Arrivals.of(requests[:1]), 0), 0, 10) is None


chunks = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5)), min_size=1, max_size=20)


@given(st.lists(chunks, min_size=1, max_size=6))
def test_the_batch_never_exceeds_the_requests_and_windows_add_up(waves: list[list[tuple[int, int]]]) -> None:
    requests = _requests(waves)
    end = max(r.chunk_t_ns[-1] for r in requests)
    intervals = running_intervals(Arrivals.of(requests), 0)
    whole = realized_batch(intervals, 0, end)
    assert whole is not None
    assert 0 <= whole.minimum <= whole.mean <= whole.peak <= len(requests)
    middle = end // 2
    parts = [realized_batch(intervals, 0, middle), realized_batch(intervals, middle, end)]
    weights = [middle, end - middle]
    total = sum(p.mean * w for p, w in zip(parts, weights, strict=True) if p is not None)
    assert total == pytest.approx(whole.mean * end, rel=1e-9)
    first, _ = tokens_between(Arrivals.of(requests), -1, middle)
    rest, _ = tokens_between(Arrivals.of(requests), middle, end)
    assert first + rest == sum(r.committed_tokens for r in requests)


@given(st.lists(chunks, min_size=1, max_size=6), st.integers(0, 400), st.integers(1, 400))
def test_the_batch_is_what_counting_each_moment_gives(
    waves: list[list[tuple[int, int]]], start_ms: int, length_ms: int
) -> None:
    requests = _requests(waves)
    first_end = min(r.chunk_t_ns[-1] for r in requests)
    spans = [(r.chunk_t_ns[0] if r.chunk_t_ns[0] > first_end else 0, r.chunk_t_ns[-1]) for r in requests]
    start, end = start_ms * MS, (start_ms + length_ms) * MS
    seen = realized_batch(running_intervals(Arrivals.of(requests), 0), start, end)
    edges = sorted({start, end, *(t for span in spans for t in span if start < t < end)})
    counts = [sum(a <= left and b >= right for a, b in spans) for left, right in pairwise(edges)]
    weights = [right - left for left, right in pairwise(edges)]
    assert seen is not None
    assert (seen.minimum, seen.peak) == (min(counts), max(counts))
    assert seen.mean == pytest.approx(np.average(counts, weights=weights), rel=1e-12, abs=1e-12)


@given(st.lists(chunks, min_size=1, max_size=6))
def test_the_percentiles_are_those_of_every_gap_between_tokens(waves: list[list[tuple[int, int]]]) -> None:
    requests = _requests(waves)
    gaps = [
        gap / MS
        for r in requests
        for gap in np.diff([t for t, n in zip(r.chunk_t_ns, r.chunk_tokens, strict=True) for _ in range(n)])
    ]
    seen = latency(Arrivals.of(requests), 0)
    if not gaps:
        assert seen.itl_p50_ms is None
        return
    expected = np.percentile(gaps, [50, 95, 99])
    assert [seen.itl_p50_ms, seen.itl_p95_ms, seen.itl_p99_ms] == pytest.approx(expected, rel=1e-12)
    assert seen.stall_max_ms == max(gaps)


def _requests(waves: list[list[tuple[int, int]]]) -> list[RequestResult]:
    times = [np.cumsum([gap for gap, _ in steps]).tolist() for steps in waves]
    return [request(t, [c for _, c in steps], str(i)) for i, (t, steps) in enumerate(zip(times, waves, strict=True))]
