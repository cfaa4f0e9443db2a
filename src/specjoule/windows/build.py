"""From what engine and meter yielded to the rows of one wave: the generation window and the decode window.

Pure: times, counts and a trace in, rows out. The windows are cut from one stored trace, so a reader can cut them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specjoule.engines.base import RequestResult, WaveResult
from specjoule.meters.base import BoardInfo, Calibration, Trace
from specjoule.meters.boardstate import board_state
from specjoule.meters.energy import WindowEnergy
from specjoule.meters.recompute import host_energy, recompute_window
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason, Status
from specjoule.study.model import ValidityConfig
from specjoule.windows.decode import decode_energy
from specjoule.windows.io import Records
from specjoule.windows.text import answer_language, before_natural_end, repetition
from specjoule.windows.timing import (
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
    generation = _generation_row(wave, context)
    status, reason = _status(generation["realized_batch_peak"], result, context)
    common |= {"status": str(status), "reason": reason}
    decode = _decode_row(wave, context)
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


def request_records(
    requests: Sequence[RequestResult], prompts: Sequence[Prompt], validity: ValidityConfig
) -> list[dict[str, Any]]:
    """Return the nested records of a wave's requests, with language and repetition judged up to the first EOS."""
    by_id = {p.id: p for p in prompts}
    records = []
    for r in requests:
        prompt = by_id.get(r.prompt_id)
        judged = repetition(
            r.output_token_ids,
            r.first_eos_position,
            min_distinct=validity.min_distinct_token_ratio,
            max_repeated=validity.max_repeated_ngram_share,
            min_tokens=validity.min_tokens_for_repetition,
        )
        own_text = before_natural_end(r.text, r.first_eos_position, r.committed_tokens)
        language = answer_language(own_text, validity.min_romansh_rate) if own_text else None
        records.append(
            {
                "prompt_id": r.prompt_id,
                "document_id": prompt.document_id if prompt else None,
                "prompt_tokens": r.prompt_tokens,
                "committed_tokens": r.committed_tokens,
                "finish_reason": r.finish_reason,
                "first_eos_position": r.first_eos_position,
                "answer_language": language,
                "language_ok": None if language is None or prompt is None else language == prompt.language,
                "distinct_token_ratio": judged.distinct_token_ratio,
                "repeated_ngram_share": judged.repeated_ngram_share,
                "degenerate": judged.degenerate,
                "rounds": r.rounds,
                "proposed_tokens": r.proposed_tokens,
                "accepted_draft_tokens": r.accepted_draft_tokens,
                "acceptance_histogram": None if r.acceptance_histogram is None else list(r.acceptance_histogram),
                "cut_tokens": r.cut_tokens,
                "cached_tokens": r.cached_tokens,
                "chunk_t_ns": list(r.chunk_t_ns),
                "chunk_tokens": list(r.chunk_tokens),
                "output_digest": _digest(r),
                "output_token_ids": list(r.output_token_ids),
                "text": r.text,
            }
        )
    return records


def _generation_row(wave: Wave, context: Context) -> dict[str, Any]:
    result, requests = wave.result, wave.result.requests
    start, end = result.submit_ns, result.end_ns
    energy = _generation_energy(wave, context)
    records = request_records(requests, wave.prompts, context.validity)
    committed = sum(r.committed_tokens for r in requests)
    rounds = sum(r.rounds for r in requests)
    timing = latency(requests, result.submit_ns)
    batch = realized_batch(running_intervals(requests, result.submit_ns), start, end)
    judged = [r["language_ok"] for r in records if r["language_ok"] is not None]
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
        "degenerate_requests": sum(bool(r["degenerate"]) for r in records),
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
        "refreshes": _refresh_records(wave),
        "samples": _sample_records(wave.trace),
        "engine_notes": json.dumps(dict(result.notes), default=str) if result.notes else None,
        "counters_before": json.dumps(dict(wave.counters_before)),
        "counters_after": json.dumps(dict(wave.counters_after)),
    }


def _decode_row(wave: Wave, context: Context) -> dict[str, Any]:
    """The decode window: batch constant, no prefill, snapped to refreshes; null with a flag where there is none."""
    requests = wave.result.requests
    empty = {"window": "decode", "flags": [str(Reason.WINDOW_TOO_SHORT)]}
    interval = constant_batch_interval(requests)
    if interval is None:
        return empty
    _, arrivals = tokens_between(requests, *interval)
    step_ns = (interval[1] - interval[0]) * len(requests) / max(1, arrivals)
    energy = decode_energy(wave.trace, *interval, step_ns, context.calibration, context.board.power_limit_w)
    if energy.energy_j is None or energy.end_ns <= energy.start_ns:
        return empty | {"flags": [str(f) for f in energy.flags] or empty["flags"]}
    start, end = energy.start_ns, energy.end_ns
    tokens, chunks = tokens_between(requests, start, end)
    # One chunk a round is what engines stream; where chunks were merged, rounds in a part of the wave are unknown.
    one_chunk_a_round = all(len(r.chunk_tokens) - 1 == r.rounds for r in requests)
    rounds = chunks if one_chunk_a_round else None
    flags = [str(f) for f in energy.flags] + ([] if rounds is not None else [str(Reason.COUNTS_MISSING)])
    batch = realized_batch(running_intervals(requests, wave.result.submit_ns), start, end)
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


def _refresh_records(wave: Wave) -> list[dict[str, Any]]:
    return [
        {"read_start_ns": int(a), "read_end_ns": int(b), "counter_j": float(c), "channel": name}
        for name, r in wave.trace.refreshes.items()
        for a, b, c in zip(r.read_start_ns.tolist(), r.read_end_ns.tolist(), r.counter_j.tolist(), strict=True)
    ]


def _sample_records(trace: Trace) -> Records:
    """Return the samples as columns: a wave has thousands, and nobody looks at them one by one before they are kept."""
    channels = [name for name, s in trace.samples.items() if len(s.t_ns)]
    kept = [trace.samples[name] for name in channels]
    counts = np.array([len(s.t_ns) for s in kept], dtype=np.int64)
    return Records(
        {
            "t_ns": np.concatenate([np.asarray(s.t_ns, dtype=np.int64) for s in kept] or [np.empty(0, np.int64)]),
            "channel": np.repeat(np.array(channels, dtype=object), counts),
            "value": np.concatenate([np.asarray(s.value, dtype=np.float64) for s in kept] or [np.empty(0)]),
        }
    )


def _digest(request: RequestResult) -> str:
    """Digest of the committed token ids; of the text where an engine returns no ids."""
    ids = request.output_token_ids
    data = np.asarray(ids, dtype=np.int64).tobytes() if ids else request.text.encode()
    return hashlib.sha256(data).hexdigest()


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
