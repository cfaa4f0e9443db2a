"""From what engine and meter yielded to the rows of one wave: the generation window and the decode window.

Pure: times, counts and a trace in, rows out. The windows are cut from one stored trace, so a reader can cut them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specjoule.engines.base import WaveResult
from specjoule.meters.base import BoardInfo, Calibration, Trace
from specjoule.meters.boardstate import board_state
from specjoule.meters.energy import WindowEnergy
from specjoule.meters.recompute import host_energy, recompute_window
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason, Status
from specjoule.study.model import ValidityConfig
from specjoule.windows.arrivals import Arrivals
from specjoule.windows.decode import decode_energy
from specjoule.windows.records import Records
from specjoule.windows.requests import request_records
from specjoule.windows.timing import (
    Running,
    constant_batch_interval,
    latency,
    realized_batch,
    running_intervals,
    tokens_between,
)


@dataclass(frozen=True)
class Wave:
    """One measured wave with everything needed to make its rows."""

    index: int
    prompts: tuple[Prompt, ...]
    result: WaveResult
    trace: Trace
    counters_before: Mapping[str, float]
    counters_after: Mapping[str, float]
    true_energy_j: Callable[[int, int], float] | None = None
    """Exact energy between two times, where boards are simulated."""


@dataclass(frozen=True)
class Context:
    """What is the same for every row of a cell's attempt."""

    columns: Mapping[str, Any]
    """Constant scalar columns (what was asked, identity, versions, host)."""
    board: BoardInfo
    calibration: Calibration
    concurrency: int
    capacity_requests: int | None
    validity: ValidityConfig


def wave_rows(wave: Wave, context: Context) -> list[dict[str, Any]]:
    """Return the generation row and the decode row of one wave (schema: `windows.schema`)."""
    result = wave.result
    requests = result.requests
    flags = _run_flags(wave, context)
    common = {
        **context.columns,
        "wave": wave.index,
        "unique_prompts": len({r.prompt_id for r in requests}),
        "capacity_requests": context.capacity_requests,
        "client_lag_ms": result.client_lag_ms,
        "capture_verified": result.capture_verified,
        "draft_width_changed": len(set(result.verify_widths)) > 1,
        "realized_batch_engine": result.realized_batch_engine,
    }
    arrivals = Arrivals.of(requests)
    running = running_intervals(arrivals, result.submit_ns)
    generation = _generation_row(wave, context, arrivals, running)
    status, reason = _status(generation["realized_batch_peak"], result, context)
    common |= {"status": str(status), "reason": reason}
    decode = _decode_row(wave, context, arrivals, running)
    rows = [common | generation, common | decode]
    for row, own in zip(rows, (generation, decode), strict=True):
        row["flags"] = sorted({*own["flags"], *(str(f) for f in flags)})
    return rows


def outcome_row(context: Context, status: Status, reason: Reason | str, detail: str) -> dict[str, Any]:
    """Return the single row of a cell that did not run (infeasible or failed): no energy, and why."""
    return {
        **context.columns,
        "wave": 0,
        "window": "generation",
        "status": str(status),
        "reason": str(reason),
        "reason_detail": detail[:2000],
        "capacity_requests": context.capacity_requests,
        "flags": [],
    }


def _generation_row(wave: Wave, context: Context, arrivals: Arrivals, running: Running) -> dict[str, Any]:
    result, requests = wave.result, wave.result.requests
    start, end = result.submit_ns, result.end_ns
    energy = _generation_energy(wave, context)
    records = request_records(requests, arrivals, wave.prompts, context.validity)
    committed = sum(r.committed_tokens for r in requests)
    rounds = sum(r.rounds for r in requests)
    timing = latency(arrivals, result.submit_ns)
    batch = realized_batch(running, start, end)
    judged = [ok for ok in records.column("language_ok") if ok is not None]
    return {
        "window": "generation",
        **_energy_columns(energy, start, end, committed),
        **_board_columns(wave.trace, start, end, context.board),
        **_host_columns(wave, context, start, end),
        "energy_true_j": wave.true_energy_j(start, end) if wave.true_energy_j else None,
        "rounds": rounds,
        "steps": result.steps,
        "proposed_tokens": sum(r.proposed_tokens for r in requests),
        "accepted_draft_tokens": sum(r.accepted_draft_tokens for r in requests),
        "committed_tokens": committed,
        "committed_per_round": (committed - len(requests)) / rounds if rounds else None,
        "cut_tokens": sum(r.cut_tokens for r in requests),
        "eos_requests": sum(r.first_eos_position is not None for r in requests),
        "truncated_requests": sum(r.finish_reason == "length" for r in requests),
        "cached_tokens": sum(r.cached_tokens for r in requests),
        "prompt_tokens": sum(r.prompt_tokens for r in requests),
        "degenerate_requests": sum(map(bool, records.column("degenerate"))),
        "language_ok_requests": sum(judged) if judged else None,
        "realized_batch": batch.mean if batch else None,
        "realized_batch_min": batch.minimum if batch else None,
        "realized_batch_peak": batch.peak if batch else None,
        "ttft_mean_ms": timing.ttft_mean_ms,
        "itl_mean_ms": timing.itl_mean_ms,
        "itl_p50_ms": timing.itl_p50_ms,
        "itl_p95_ms": timing.itl_p95_ms,
        "itl_p99_ms": timing.itl_p99_ms,
        "stall_max_ms": timing.stall_max_ms,
        "requests": records,
        "refreshes": _refresh_records(wave.trace),
        "samples": _sample_records(wave.trace),
        "engine_notes": json.dumps(dict(result.notes), default=str) if result.notes else None,
        "counters_before": json.dumps(dict(wave.counters_before)),
        "counters_after": json.dumps(dict(wave.counters_after)),
    }


def _decode_row(wave: Wave, context: Context, arrivals: Arrivals, running: Running) -> dict[str, Any]:
    """The decode window: batch constant, no prefill, snapped to refreshes; null with a flag where there is none."""
    requests = wave.result.requests
    empty = {"window": "decode", "flags": [str(Reason.WINDOW_TOO_SHORT)]}
    interval = constant_batch_interval(arrivals)
    if interval is None:
        return empty
    _, arrived = tokens_between(arrivals, *interval)
    step_ns = (interval[1] - interval[0]) * len(requests) / max(1, arrived)
    energy = decode_energy(wave.trace, *interval, step_ns, context.calibration, context.board.power_limit_w)
    if energy.energy_j is None or energy.end_ns <= energy.start_ns:
        return empty | {"flags": [str(f) for f in energy.flags] or empty["flags"]}
    start, end = energy.start_ns, energy.end_ns
    tokens, chunks = tokens_between(arrivals, start, end)
    # One chunk a round is what engines stream; where chunks were merged, rounds in a part of the wave are unknown.
    one_chunk_a_round = bool((arrivals.lengths - 1 == [r.rounds for r in requests]).all())
    rounds = chunks if one_chunk_a_round else None
    flags = [str(f) for f in energy.flags] + ([] if rounds is not None else [str(Reason.COUNTS_MISSING)])
    batch = realized_batch(running, start, end)
    width = max(wave.result.verify_widths, default=1)
    return {
        "window": "decode",
        **_energy_columns(energy, start, end, tokens),
        **_board_columns(wave.trace, start, end, context.board),
        **_host_columns(wave, context, start, end),
        "flags": flags,
        "energy_true_j": wave.true_energy_j(start, end) if wave.true_energy_j else None,
        "committed_tokens": tokens,
        "rounds": rounds,
        "steps": round(rounds / len(requests)) if rounds is not None else None,
        "proposed_tokens": rounds * (width - 1) if rounds is not None else None,
        "committed_per_round": tokens / rounds if rounds else None,
        "realized_batch": batch.mean if batch else None,
        "realized_batch_min": batch.minimum if batch else None,
        "realized_batch_peak": batch.peak if batch else None,
    }


def _generation_energy(wave: Wave, context: Context) -> WindowEnergy:
    return recompute_window(
        wave.trace,
        wave.result.submit_ns,
        wave.result.end_ns,
        edges="generation",
        calibration=context.calibration,
        power_limit_w=context.board.power_limit_w,
    )


def _energy_columns(energy: WindowEnergy, start_ns: int, end_ns: int, tokens: int) -> dict[str, Any]:
    duration_s = (end_ns - start_ns) / 1e9
    return {
        "t_start_ns": start_ns,
        "t_end_ns": end_ns,
        "duration_s": duration_s,
        "energy_start_j": energy.counter_start_j,
        "energy_end_j": energy.counter_end_j,
        "energy_j": energy.energy_j,
        "energy_uncertainty_j": energy.uncertainty_j,
        "energy_naive_j": energy.naive_j,
        "power_integral_j": energy.power_integral_j,
        "power_mean_w": None if energy.energy_j is None or duration_s <= 0 else energy.energy_j / duration_s,
        "meter_refresh_ms": energy.refresh_ms,
        "throughput_tok_s": tokens / duration_s if duration_s > 0 else None,
        "flags": [str(f) for f in energy.flags],
    }


def _host_columns(wave: Wave, context: Context, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Energy of CPU packages and DRAM beside a board; nothing where the processor itself is the board."""
    if context.columns.get("meter") in ("rapl", "estimate"):
        return {}
    host = host_energy(wave.trace, start_ns, end_ns)
    return {} if Reason.NO_METER in host.flags else {"host_energy_j": host.energy_j, "host_meter": "rapl"}


def _board_columns(trace: Trace, start_ns: int, end_ns: int, board: BoardInfo) -> dict[str, Any]:
    state = board_state(trace, start_ns, end_ns)
    return {
        "power_limit_w": board.power_limit_w,
        "sm_clock_mean_mhz": state.sm_clock_mean_mhz,
        "sm_clock_min_mhz": state.sm_clock_min_mhz,
        "temperature_start_c": state.temperature_start_c,
        "temperature_max_c": state.temperature_max_c,
        "power_capped_share": state.power_capped_share,
        "foreign_processes": state.foreign_processes,
        "throttle_reasons": None if state.throttle_reasons is None else list(state.throttle_reasons),
    }


def _refresh_records(trace: Trace) -> Records:
    kept = trace.refreshes
    return Records(
        {
            "read_start_ns": _joined([r.read_start_ns for r in kept.values()], np.int64),
            "read_end_ns": _joined([r.read_end_ns for r in kept.values()], np.int64),
            "counter_j": _joined([r.counter_j for r in kept.values()], np.float64),
            "channel": np.repeat(np.array(list(kept), dtype=object), [len(r) for r in kept.values()]),
        }
    )


def _sample_records(trace: Trace) -> Records:
    kept = {name: s for name, s in trace.samples.items() if len(s)}
    return Records(
        {
            "t_ns": _joined([s.t_ns for s in kept.values()], np.int64),
            "channel": np.repeat(np.array(list(kept), dtype=object), [len(s) for s in kept.values()]),
            "value": _joined([s.value for s in kept.values()], np.float64),
        }
    )


def _joined(parts: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts])


def _status(peak: int | None, result: WaveResult, context: Context) -> tuple[Status, str | None]:
    """Partial if fewer ran at once than asked: judged by peak and capacity, not by the ragged end."""
    capacity = context.capacity_requests
    peaks = [p for p in (peak, result.peak_batch_engine) if p is not None]
    if (capacity is not None and capacity < context.concurrency) or (peaks and min(peaks) < context.concurrency):
        return Status.PARTIAL, str(Reason.CAPACITY)
    return Status.OK, None


def _run_flags(wave: Wave, context: Context) -> set[Reason]:
    """Faults of the run that only the wave's whole result shows; the trace's own are cut to each window."""
    flags = {Reason.NOT_SETTLED} if Reason.NOT_SETTLED in wave.trace.flags else set()
    asked = [p.id for p in wave.prompts]
    returned = [r.prompt_id for r in wave.result.requests]
    if sorted(asked) != sorted(returned):
        flags.add(Reason.STREAM_BROKEN)
    return flags | set(wave.result.faults)
