"""The error study: random windows on virtual boards with known truth, through the sampler's loop. Used by tests and
`benchmarks/meter_error.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from virtual_board import Load, VirtualBoard, record

from specjoule.clock import VirtualClock
from specjoule.meters.base import Calibration
from specjoule.meters.energy import interpolated_energy_j, window_energy
from specjoule.meters.sampled import cut_refreshes


@dataclass(frozen=True)
class Case:
    """One kind of board and window."""

    refresh_ms: float
    latency_ms: float
    lag_ms: float
    length_s: float
    edges: Literal["generation", "decode"]
    late_share: float = 0.0
    late_ms: float = 30.0
    lag_error_ms: float = 1.0
    """The lag is known to +- this much, as after a calibration."""


@dataclass(frozen=True)
class Errors:
    """Relative errors of one way of reading."""

    p95_percent: float
    bias_percent: float


@dataclass(frozen=True)
class Found:
    """Result of one case."""

    case: Case
    n: int
    corrected: Errors
    interpolated: Errors
    naive: Errors
    coverage_percent: float
    mean_uncertainty_percent: float
    unknown: int
    reads_per_s: float


_CHUNK = 20


def study(case: Case, n: int, seed: int) -> Found:
    """Draw `n` windows of about the case's length and compare with the truth."""
    rng = np.random.default_rng(seed)
    corrected, interpolated, naive, covered, relative = [], [], [], [], []
    unknown = reads = 0
    seconds = 0.0
    for first in range(0, n, _CHUNK):
        spans, end_ns = _spans(case, min(_CHUNK, n - first), rng)
        load = Load(tuple(spans))
        board = VirtualBoard(
            load, VirtualClock(), case.refresh_ms * 1e6, case.latency_ms * 1e6, case.lag_ms * 1e6, rng, end_ns,
            late_share=case.late_share, late_ns=case.late_ms * 1e6,
        )  # fmt: skip
        refreshes = record(board)
        reads += board.reads
        seconds += end_ns * 1e-9
        lag_ns = round((case.lag_ms + rng.uniform(-1, 1) * case.lag_error_ms) * 1e6)
        known = Calibration(lag_ns=lag_ns, lag_uncertainty_ns=round(case.lag_error_ms * 1e6), calibrated=True)
        for span in spans:
            start, end = span
            if case.edges == "decode":  # inside the busy stretch
                start, end = start + 60_000_000, end - 20_000_000
            part = cut_refreshes(refreshes, start, end + lag_ns + known.lag_uncertainty_ns)
            result = window_energy(part, start, end, edges=case.edges, calibration=known)
            if result.energy_j is None or result.uncertainty_j is None:
                unknown += 1
                continue
            truth_j = _truth_j(load, result.start_ns, result.end_ns)
            corrected.append(result.energy_j / truth_j - 1)
            covered.append(abs(result.energy_j - truth_j) <= result.uncertainty_j)
            relative.append(result.uncertainty_j / truth_j)
            asked_j = _truth_j(load, start, end)
            between_j = interpolated_energy_j(part, start, end, lag_ns)
            interpolated.append(np.nan if between_j is None else between_j / asked_j - 1)
            naive.append(np.nan if result.naive_j is None else result.naive_j / asked_j - 1)
    return Found(
        case, n, _errors(corrected), _errors(interpolated), _errors(naive), 100 * float(np.mean(covered)),
        100 * float(np.mean(relative)), unknown, reads / seconds,
    )  # fmt: skip


def _spans(case: Case, n: int, rng: np.random.Generator) -> tuple[list[tuple[int, int]], int]:
    """Return busy stretches with idle of a second between them; lengths are no multiple of the refresh."""
    spans, t = [], 2.5e9 + rng.uniform(0, 0.2e9)
    for _ in range(n):
        length = case.length_s * 1e9 * rng.uniform(0.93, 1.07) + (180e6 if case.edges == "decode" else 0)
        spans.append((int(t), int(t + length)))
        t += length + rng.uniform(0.9e9, 1.3e9)
    return spans, int(t + 0.4e9)


def _truth_j(load: Load, start_ns: int, end_ns: int) -> float:
    begin, finish = load.energy_j(np.array([start_ns, end_ns], dtype=np.float64))
    return float(finish - begin)


def _errors(values: list[float]) -> Errors:
    percent = 100 * np.array(values)
    return Errors(float(np.nanpercentile(np.abs(percent), 95)), float(np.nanmean(percent)))
