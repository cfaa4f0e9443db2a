"""One raw window file in words: what was measured, when, where, with what result, and why it counts or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from specjoule.errors import StoreError
from specjoule.meters.base import PROVENANCE
from specjoule.reasons import Reason
from specjoule.study.model import ValidityConfig
from specjoule.version import PROTOCOL_VERSION
from specjoule.windows.io import read_window_table
from specjoule.windows.validity import judge_rows

_ATTEMPT = ("segment_id", "launch", "attempt", "role")
_ASKED = (
    "study", "model", "gpu", "drafter", "scheme", "draft_tokens", "verify_width", "concurrency", "corpus", "seed",
    "replicate", "waves", "capture", "locked_mhz", "context_tokens", "max_new_tokens", "ignore_eos", "cell_hash",
    "protocol_version", "engine", "engine_version", "model_revision", "drafter_revision", "block_id",
)  # fmt: skip
_WHERE = ("started_at", "host", "cpu_model", "gpu_name", "gpu_uuid", "driver", "meter", "git_commit")


def describe_file(path: Path, rules: ValidityConfig | None = None) -> dict[str, Any]:
    """Return what the raw window file at `path` says, JSON-ready: the cell asked for and each of its attempts.

    The verdict is the one of collect under `rules` (default: the shipped thresholds), without the block's drift, which
    is known only beside the file. Raises StoreError for anything that is not a raw window file of a known version.
    """
    table = read_window_table(path)
    if table.num_rows == 0:
        raise StoreError(f"{path}: holds no rows; measure the cell again (specjoule remeasure)")
    return describe_table(table, path, rules or ValidityConfig())


def describe_table(table: pa.Table, path: Path, rules: ValidityConfig) -> dict[str, Any]:
    """Return the description of the raw rows in `table`; `path` is for messages only. Raises StoreError."""
    rows: list[dict[str, Any]] = table.to_pylist()
    newest = max(int(row["protocol_version"]) for row in rows)
    if newest > PROTOCOL_VERSION:
        raise StoreError(
            f"{path}: was measured under protocol version {newest} and this release knows up to {PROTOCOL_VERSION}; "
            "upgrade SpecJoule to read it"
        )
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in _ATTEMPT), []).append(row)
    return {
        "file": str(path),
        "cell": {name: rows[0].get(name) for name in _ASKED},
        "attempts": [_attempt(part, rules) for part in groups.values()],
    }


def _attempt(rows: Sequence[Mapping[str, Any]], rules: ValidityConfig) -> dict[str, Any]:
    first = rows[0]
    generation = [r for r in rows if r["window"] == "generation"]
    verdicts = judge_rows(generation, [r.get("requests") for r in generation], rules)
    reasons = list(dict.fromkeys(r for v in verdicts for r in v.reasons))
    worst = next((v.validity for v in verdicts if v.validity != "valid"), verdicts[0].validity)
    energy, tokens = _sum(generation, "energy_j"), _sum(generation, "committed_tokens")
    rounds, duration = _sum(generation, "rounds"), _sum(generation, "duration_s")
    requests = [r for row in generation for r in (row.get("requests") or ())]
    languages: dict[str, int] = {}
    for request in requests:
        name = request["answer_language"] or "unclear"
        languages[name] = languages.get(name, 0) + 1
    return {
        **{name: first.get(name) for name in (*_ATTEMPT, *_WHERE)},
        "status": first["status"],
        "reason": first.get("reason"),
        "reason_detail": first.get("reason_detail"),
        "validity": str(worst),
        "validity_reasons": [{"code": str(r), "text": r.text} for r in reasons],
        "waves_measured": len(generation),
        "duration_s": duration,
        "energy_j": energy,
        "energy_uncertainty_j": _sum(generation, "energy_uncertainty_j"),
        "provenance": PROVENANCE.get(str(first["meter"]), "unknown meter, not known to be measured"),
        "committed_tokens": tokens,
        "j_per_token": energy / tokens if energy is not None and tokens else None,
        "rounds": rounds,
        "committed_per_round": (tokens - len(requests)) / rounds if tokens and rounds else None,
        "proposed_tokens": _sum(generation, "proposed_tokens"),
        "accepted_draft_tokens": _sum(generation, "accepted_draft_tokens"),
        "power_mean_w": energy / duration if energy is not None and duration else None,
        "itl_mean_ms": _mean(generation, "itl_mean_ms"),
        "realized_batch": _mean(generation, "realized_batch"),
        "capacity_requests": first.get("capacity_requests"),
        "prompts": sorted({r["prompt_id"] for r in requests}),
        "answers_with_natural_end": sum(r["first_eos_position"] is not None for r in requests),
        "answers_that_repeat_themselves": sum(bool(r["degenerate"]) for r in requests),
        "answer_languages": dict(sorted(languages.items())),
    }


def sentence_of(code: str) -> str:
    """Return the sentence of a reason code; the code itself where this release does not know it."""
    return next((r.text for r in Reason if r == code), code)


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Sum over waves; None where any wave's value is missing, never a partial sum."""
    values = [row.get(name) for row in rows]
    return None if not values or any(v is None for v in values) else sum(values)  # type: ignore[misc]


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def in_words(facts: Mapping[str, Any]) -> str:
    """Return the description as paragraphs for people."""
    cell = facts["cell"]
    drafts = (
        "plain decoding (no drafter)"
        if cell["draft_tokens"] == 0
        else f"drafter {cell['drafter']} ({cell['scheme']}: proposes {cell['draft_tokens']}, verifies "
        f"{cell['verify_width']} positions per request and round)"
    )
    extras = [
        f"{label} {cell[name]}{unit}"
        for name, label, unit in (
            ("locked_mhz", "clock locked at", " MHz"),
            ("context_tokens", "context brought to", " tokens"),
        )
        if cell[name] is not None
    ]
    lines = [
        f"What   Study '{cell['study']}': {cell['model']} on {cell['gpu']}, {drafts}, {cell['concurrency']} requests "
        f"at once from '{cell['corpus']}', seed {cell['seed']}, replicate {cell['replicate']}, {cell['waves']} wave(s) "
        f"of {cell['max_new_tokens']} tokens a request{' past their natural end' if cell['ignore_eos'] else ''}"
        f"{', ' + ', '.join(extras) if extras else ''}.",
        f"       Engine {cell['engine']} ({cell['engine_version']}), protocol {cell['protocol_version']}, cell "
        f"{cell['cell_hash']} of block {cell['block_id']}.",
    ]
    attempts = facts["attempts"]
    for number, attempt in enumerate(attempts, start=1):
        head = f"Attempt {attempt['attempt']} ({number} of {len(attempts)} in this file)"
        lines += ["", head + (", the closing plain launch" if attempt["role"] == "reference" else ""), *_words(attempt)]
    return "\n".join(lines)


def _words(a: Mapping[str, Any]) -> list[str]:
    board = ", ".join(str(v) for v in (a["gpu_name"], a["gpu_uuid"], a["driver"] and f"driver {a['driver']}") if v)
    lines = [
        f"When   {a['started_at']} (UTC), segment {a['segment_id']}, launch {a['launch']}.",
        f"Where  Host {a['host'] or 'unknown'}, board {board or 'unknown'}; code {a['git_commit'] or 'outside git'}.",
    ]
    if a["energy_j"] is None:
        lines.append("Energy None recorded.")
    else:
        uncertainty = "" if a["energy_uncertainty_j"] is None else f" ± {a['energy_uncertainty_j']:.3g}"
        per_token = "" if a["j_per_token"] is None else f", {a['j_per_token']:.4g} J per committed token"
        lines.append(
            f"Energy {a['energy_j']:.5g}{uncertainty} J over {a['duration_s']:.4g} s ({a['power_mean_w']:.4g} W)"
            f"{per_token}: {a['provenance']} (meter '{a['meter']}')."
        )
    if a["committed_tokens"] is not None:
        rounds = (
            f"; {a['rounds']} rounds, {a['committed_per_round']:.3g} tokens committed per request and round"
            if a["committed_per_round"] is not None
            else ""
        )
        drafts = (
            f"; {a['accepted_draft_tokens']} of {a['proposed_tokens']} drafts accepted" if a["proposed_tokens"] else ""
        )
        lines.append(
            f"Tokens {a['committed_tokens']} committed by {len(a['prompts'])} prompts in {a['waves_measured']} wave(s)"
            f"{rounds}{drafts}."
        )
        lines.append(_answers(a))
    lines.append(_verdict(a))
    return lines


def _answers(a: Mapping[str, Any]) -> str:
    spoken = ", ".join(f"{count} {name}" for name, count in a["answer_languages"].items()) or "none"
    return (
        f"Texts  {a['answers_with_natural_end']} answers reached a natural end, {a['answers_that_repeat_themselves']} "
        f"repeat themselves before it; languages: {spoken}."
    )


def _verdict(a: Mapping[str, Any]) -> str:
    state = a["status"] if a["reason"] is None else f"{a['status']} ({a['reason']})"
    if a["status"] in ("infeasible", "failed"):
        capacity = "" if a["capacity_requests"] is None else f" Capacity: {a['capacity_requests']} requests."
        sentence = sentence_of(a["reason"]) if a["reason"] else ""
        detail = f" The engine said: {a['reason_detail']}" if a["reason_detail"] else ""
        return f"Counts No: {state}. {sentence}{capacity}{detail}"
    if a["validity"] == "valid":
        if a["status"] == "partial":
            return f"Counts At its realized batch only: {state}, {a['realized_batch']:.3g} requests ran at once."
        return f"Counts Yes: {state} and valid."
    why = " ".join(f"{r['code']}: {r['text']}" for r in a["validity_reasons"])
    return f"Counts No: {state}, {a['validity']}. {why}"
