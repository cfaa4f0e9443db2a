"""Which rows may enter a ratio: one pure function, used for the journal's provisional verdict and again at collect.

Rules are set before the data (`ValidityConfig`); each names its reason code. An invalid row is kept and never used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from specjoule.reasons import Reason, Status, Validity
from specjoule.study.model import ValidityConfig

THERMAL = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
HARDWARE = frozenset({"hw_slowdown", "hw_power_brake"})

INFORMATIVE = frozenset({Reason.LAG_NOT_CALIBRATED, Reason.CALIBRATION_STALE, Reason.WINDOW_TOO_SHORT})
"""Flags that a row carries without being invalid by them alone; short windows are judged by their uncertainty."""

ENVIRONMENTAL = frozenset(
    {
        Reason.METER_GAP, Reason.COUNTER_RESET, Reason.COUNTER_DECREASE, Reason.COUNTER_FROZEN, Reason.DRIVER_RELOADED,
        Reason.FOREIGN_PROCESSES, Reason.BUSY_HOST, Reason.CLIENT_BEHIND, Reason.ZERO_ENERGY, Reason.OUTSIDE_TRACE,
    }
)  # fmt: skip
"""Reasons that lie in the environment of one attempt: worth one more, never in what was generated."""


Attempt = tuple[Any, ...]


@dataclass(frozen=True)
class Verdict:
    """Validity of one row, with every reason that speaks against it."""

    validity: Validity
    reasons: tuple[Reason, ...]


JUDGED: tuple[str, ...] = (
    "status", "reason", "flags", "window", "energy_j", "committed_tokens", "power_limit_w", "power_mean_w",
    "energy_uncertainty_j", "power_integral_j", "duration_s", "foreign_processes", "load_average", "throttle_reasons",
    "locked_mhz", "sm_clock_mean_mhz", "capture", "capture_verified", "draft_width_changed", "client_lag_ms",
    "realized_batch", "realized_batch_engine", "verify_width", "ignore_eos", "max_new_tokens", "unique_prompts",
    "concurrency", "cached_tokens", "cell_hash", "segment_id", "launch", "attempt", "role", "instrumentation",
)  # fmt: skip
"""Columns that a verdict is made from."""


def judge(
    row: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]] | None,
    rules: ValidityConfig,
    *,
    accounted: bool = False,
) -> Verdict:
    """Return the verdict on one raw row.

    `requests` are the generation row's nested records (needed for the sums over requests; None on a decode row);
    `accounted`: they are already known to satisfy every identity, and are not looked at.
    A run that yielded nothing (infeasible, failed) is `not_measured` with the run's own reason.
    """
    if row["status"] in (Status.INFEASIBLE, Status.FAILED):
        why = Reason.of(row["reason"]) if row["reason"] is not None else Reason.NOT_REPORTED
        return Verdict(Validity.NOT_MEASURED, (why,))
    reasons: list[Reason] = []
    reasons += [r for r in map(Reason.of, row.get("flags") or ()) if r not in INFORMATIVE]
    reasons += _energy_reasons(row, rules)
    reasons += _board_reasons(row, rules)
    if row["window"] == "generation":
        reasons += [] if accounted else _accounting_reasons(row, requests or ())
        reasons += _prompt_reasons(row)
    distinct = tuple(dict.fromkeys(reasons))
    return Verdict(Validity.INVALID if distinct else Validity.VALID, distinct)


def judge_rows(
    rows: Sequence[Mapping[str, Any]], requests: Sequence[Sequence[Mapping[str, Any]] | None], rules: ValidityConfig
) -> list[Verdict]:
    """Return the verdict on every row of one or several attempts, in order.

    As `judge`, and where more than the allowed share of an attempt's answers (over all its waves) repeat themselves,
    each of its generation rows is invalid. The share is the attempt's and not the wave's: at concurrency 1 a single
    looping answer would otherwise always be a whole wave. A prompt that occurs in two waves of an attempt makes the
    attempt's rows invalid as one that occurs twice in a batch does.
    """
    verdicts = [judge(row, nested, rules) for row, nested in zip(rows, requests, strict=True)]
    answers = [(sum(_degenerate(r, rules) for r in nested), len(nested)) if nested else (0, 0) for nested in requests]
    return with_repetition(rows, verdicts, answers, _repeating(rows, requests), rules)


def with_repetition(
    rows: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Verdict],
    answers: Sequence[tuple[int, int]],
    again: Set[Attempt],
    rules: ValidityConfig,
) -> list[Verdict]:
    """Add the attempt-wide rules on repetition.

    `answers` are (repetitive, all) answers of each row, `again` the attempts in which a prompt occurs in two waves.
    """
    counted: dict[Attempt, list[int]] = {}
    for row, (bad, n) in zip(rows, answers, strict=True):
        if row["window"] == "generation" and n:
            total = counted.setdefault(attempt_of(row), [0, 0])
            total[0] += bad
            total[1] += n
    looping = {key for key, (bad, n) in counted.items() if bad / n > rules.max_degenerate_share}
    out = []
    for row, verdict in zip(rows, verdicts, strict=True):
        reasons = list(verdict.reasons)
        if row["window"] == "generation" and verdict.validity != Validity.NOT_MEASURED:
            key = attempt_of(row)
            reasons += [Reason.REPEATED_PROMPTS] if key in again and Reason.REPEATED_PROMPTS not in reasons else []
            reasons += [Reason.DEGENERATE_OUTPUT] if key in looping else []
        changed = len(reasons) > len(verdict.reasons)
        out.append(Verdict(Validity.INVALID, tuple(reasons)) if changed else verdict)
    return out


def _repeating(
    rows: Sequence[Mapping[str, Any]], requests: Sequence[Sequence[Mapping[str, Any]] | None]
) -> set[Attempt]:
    """Return the attempts in which a prompt occurs in more than one wave."""
    seen: dict[Attempt, set[Any]] = {}
    again: set[Attempt] = set()
    for row, nested in zip(rows, requests, strict=True):
        if row["window"] != "generation" or not nested:
            continue
        key = attempt_of(row)
        prompts = {r["prompt_id"] for r in nested if r.get("prompt_id") is not None}
        if prompts & seen.setdefault(key, set()):
            again.add(key)
        seen[key] |= prompts
    return again


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    """Return what tells a row's attempt from others."""
    return (row["cell_hash"], row["segment_id"], row["launch"], row["attempt"], row["role"])


def _degenerate(request: Mapping[str, Any], rules: ValidityConfig) -> bool:
    """Judge one answer from its stored ratios, so that changed thresholds need no new measurement."""
    distinct, repeated = request["distinct_token_ratio"], request["repeated_ngram_share"]
    return (distinct is not None and distinct < rules.min_distinct_token_ratio) or (
        repeated is not None and repeated > rules.max_repeated_ngram_share
    )


def attempt_outcome(rows: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return one attempt's status, reason and provisional verdict, as the journal keeps them.

    The verdict is that of the generation windows, on which the headline stands.
    """
    generation = [v for row, v in zip(rows, verdicts, strict=True) if row["window"] == "generation"]
    invalid = next((v.validity for v in generation if v.validity != Validity.VALID), generation[0].validity)
    statuses = {row["status"] for row in rows}
    return {
        "status": "partial" if statuses == {"ok", "partial"} else rows[0]["status"],
        "reason": next((row["reason"] for row in rows if row.get("reason")), None),
        "validity": str(invalid),
        "validity_reasons": sorted({str(r) for v in generation for r in v.reasons}),
    }


def worth_another_attempt(verdicts: Sequence[Verdict]) -> bool:
    """Say whether a cell's invalid rows are invalid for environmental reasons only."""
    reasons = {r for v in verdicts if v.validity is Validity.INVALID for r in v.reasons}
    return bool(reasons) and reasons <= ENVIRONMENTAL


def _energy_reasons(row: Mapping[str, Any], rules: ValidityConfig) -> list[Reason]:
    out: list[Reason] = []
    energy = row.get("energy_j")
    if energy is None:
        # The flags say why where the meter knows; a decode window that does not exist is simply not there.
        if any(Reason.of(f) not in INFORMATIVE for f in row.get("flags") or ()):
            return []
        return [Reason.WINDOW_TOO_SHORT if row["window"] == "decode" else Reason.NO_METER]
    if not math.isfinite(energy):
        return [Reason.NO_METER]
    if not energy > 0:
        out.append(Reason.ZERO_ENERGY)
    out += _duration_reasons(row.get("duration_s"))
    if not (row.get("committed_tokens") or 0) > 0:
        out.append(Reason.NO_TOKENS)
    limit, power = row.get("power_limit_w"), row.get("power_mean_w")
    if limit is not None and power is not None and power > rules.power_limit_factor * limit:
        out.append(Reason.POWER_ABOVE_LIMIT)
    uncertainty = row.get("energy_uncertainty_j")
    if uncertainty is not None and energy > 0 and uncertainty / energy > rules.max_relative_uncertainty:
        out.append(Reason.WINDOW_TOO_SHORT)
    integral = row.get("power_integral_j")
    if integral is not None and energy > 0 and abs(integral - energy) / energy > _cross_check_limit(row, rules):
        out.append(Reason.CROSS_CHECK)
    return out


def _duration_reasons(duration_s: float | None) -> list[Reason]:
    """A window without a length has an energy but neither power nor throughput."""
    if duration_s is None or not math.isfinite(duration_s):
        return [Reason.NOT_REPORTED]
    return [] if duration_s > 0 else [Reason.WINDOW_TOO_SHORT]


def _cross_check_limit(row: Mapping[str, Any], rules: ValidityConfig) -> float:
    """Allow the sampled power what its own delay at the two edges can cost, which weighs more in a short window."""
    duration_s = row.get("duration_s") or 0.0
    edges = rules.cross_check_edge_ms / 1e3 / duration_s if duration_s > 0 else 0.0
    return rules.max_cross_check + edges


def _board_reasons(row: Mapping[str, Any], rules: ValidityConfig) -> list[Reason]:
    out: list[Reason] = []
    if (row.get("foreign_processes") or 0) > 0:
        out.append(Reason.FOREIGN_PROCESSES)
    load = row.get("load_average")
    if rules.max_load_average is not None and load is not None and load > rules.max_load_average:
        out.append(Reason.BUSY_HOST)
    throttle = set(row.get("throttle_reasons") or ())
    if throttle & THERMAL:
        out.append(Reason.THERMAL_SLOWDOWN)
    if throttle & HARDWARE:
        out.append(Reason.HARDWARE_SLOWDOWN)
    locked, mean = row.get("locked_mhz"), row.get("sm_clock_mean_mhz")
    if locked is not None and mean is not None and abs(mean - locked) / locked > rules.max_clock_deviation:
        out.append(Reason.CLOCK_NOT_OBEYED)
    if row.get("capture") and row.get("capture_verified") is False:
        out.append(Reason.CAPTURE_FELL_BACK)
    elif row.get("capture") and row.get("capture_verified") is None and row.get("instrumentation") is None:
        # Without the step lines nothing can prove it; such rows are compared with those of the full flags only.
        out.append(Reason.CAPTURE_NOT_PROVEN)
    if row.get("draft_width_changed"):
        out.append(Reason.DRAFT_WIDTH_CHANGED)
    lag = row.get("client_lag_ms")
    if lag is not None and lag > rules.max_client_lag_ms:
        out.append(Reason.CLIENT_BEHIND)
    mine, engines = row.get("realized_batch"), row.get("realized_batch_engine")
    if (
        row["window"] == "generation"
        and mine
        and engines is not None
        and abs(engines - mine) / mine > rules.max_batch_disagreement
    ):
        out.append(Reason.ENGINE_BATCH_DISAGREES)
    return out


def _accounting_reasons(row: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> list[Reason]:
    """The identities that every raw row satisfies or is rejected with the reason."""
    out: list[Reason] = []
    if sum(r["committed_tokens"] or 0 for r in requests) != row["committed_tokens"]:
        out.append(Reason.DENOMINATOR_MISMATCH)
    width = row["verify_width"]
    for r in requests:
        committed, rounds, chunks = r["committed_tokens"], r["rounds"], r["chunk_tokens"]
        if committed is None or chunks is None or None in chunks:
            out.append(Reason.COUNTS_MISSING)
            continue
        if r["output_token_ids"] and len(r["output_token_ids"]) != committed:
            out.append(Reason.DENOMINATOR_MISMATCH)
        if sum(chunks) != committed:
            out.append(Reason.DENOMINATOR_MISMATCH)
        histogram = r["acceptance_histogram"]
        if None in (rounds, r["accepted_draft_tokens"], r["cut_tokens"], *(histogram or ())):
            out.append(Reason.COUNTS_MISSING)
            continue
        decoded = committed - 1
        if decoded != r["accepted_draft_tokens"] + rounds - r["cut_tokens"] or not rounds <= decoded <= rounds * width:
            out.append(Reason.ROUNDS_INCONSISTENT)
        if histogram is not None and (
            sum(histogram) != rounds or sum(i * h for i, h in enumerate(histogram)) != r["accepted_draft_tokens"]
        ):
            out.append(Reason.HISTOGRAM_INCONSISTENT)
        if row["ignore_eos"] and committed < row["max_new_tokens"]:
            out.append(Reason.SHORT_ANSWER)
    return out


def _prompt_reasons(row: Mapping[str, Any]) -> list[Reason]:
    out: list[Reason] = []
    unique = row.get("unique_prompts")
    if unique is not None and row["status"] == Status.OK and unique < row["concurrency"]:
        out.append(Reason.REPEATED_PROMPTS)
    if (row.get("cached_tokens") or 0) > 0:
        out.append(Reason.CACHE_HIT)
    return out
