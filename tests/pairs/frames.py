"""Small, schema-conform collected rows for the tests of the analysis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pandas as pd

from specjoule.windows.schema import COLLECTED, NESTED, SCALARS

COLUMNS = [*(c for c in SCALARS if c not in NESTED), *(c.name for c in COLLECTED)]

DEFAULTS: dict[str, Any] = {
    "study": "test", "site": None, "model": "M", "gpu": "G", "n_gpus": 1, "drafter": "plain", "scheme": "plain",
    "draft_tokens": 0, "verify_width": 1, "concurrency": 1, "corpus": "code", "language": "en", "context_tokens": None,
    "seed": 0, "replicate": 0, "wave": 0, "waves": 2, "window": "generation", "capture": True, "locked_mhz": None,
    "weight_dtype": "bfloat16", "kv_dtype": "bfloat16", "sampling": "greedy", "chat_template": "t", "ignore_eos": True,
    "max_new_tokens": 100, "ngram_state": "cold", "pool_digest": "p", "grid": "base", "schema_version": 1,
    "protocol_version": 1, "block_order": 0, "launch": 0, "role": "cell", "attempt": 1, "boot_id": "boot",
    "git_commit": "abc", "started_at": "2026-01-01T00:00:00Z", "status": "ok", "reason": None, "reason_detail": None,
    "flags": None, "engine": "simulated", "engine_version": "1", "model_revision": "r", "drafter_revision": None,
    "meter": "simulated", "meter_refresh_ms": 100.0, "meter_lag_ms": 0.0, "idle_power_w": 100.0,
    "gpu_uuid": "GPU-0", "gpu_name": "board", "driver": "1.0", "power_limit_w": 700.0, "ecc": True,
    "capture_verified": True, "draft_width_changed": False, "host": "h", "cpu_model": "cpu", "numa_node": 0,
    "governor": "performance", "foreign_processes": 0, "cached_tokens": 0, "validity": "valid",
    "validity_reason": None, "block_drift": 0.002, "temperature_start_c": 40.0, "temperature_max_c": 60.0,
    "sm_clock_mean_mhz": 1800.0, "sm_clock_min_mhz": 1750.0, "power_capped_share": 0.0, "stall_max_ms": 50.0,
    "degenerate_requests": 0, "language_ok_requests": 1, "eos_requests": 0, "cut_tokens": 0, "wall_offset_ns": 0,
}  # fmt: skip

DRAFTERS: dict[str, tuple[str, int, float, float, float]] = {
    # name: scheme, k, A, energy per step over plain's at batch 1, growth of that with log2(concurrency)
    "ngram-4": ("ngram", 3, 1.5, 1.1, 0.05),
    "dflash-16": ("dflash", 15, 3.2, 1.6, 0.35),
    "dspark-7": ("dspark", 6, 2.8, 1.4, 0.15),
}


def row(**changes: Any) -> dict[str, Any]:
    """One collected row with every column; unknown names are refused."""
    unknown = set(changes) - set(COLUMNS)
    assert not unknown, unknown
    out: dict[str, Any] = dict.fromkeys(COLUMNS)
    out.update(DEFAULTS)
    out.update(changes)
    factors = [str(out[k]) for k in (
        "model", "gpu", "drafter", "concurrency", "corpus", "seed", "replicate", "capture", "locked_mhz",
        "context_tokens", "max_new_tokens", "ignore_eos",
    )]  # fmt: skip
    if out["cell_hash"] is None:
        out["cell_hash"] = hashlib.sha256("|".join(factors).encode()).hexdigest()[:16]
    if out["block_id"] is None:
        out["block_id"] = f"{out['model']}-{out['gpu']}-s{out['seed']}-r{out['replicate']}"
    if out["segment_id"] is None:
        out["segment_id"] = f"{out['block_id']}-seg0"
    if out["raw_file"] is None:
        out["raw_file"] = f"{out['cell_hash']}.parquet"
    return out


def cell(
    drafter: str = "plain",
    *,
    concurrency: int = 1,
    waves: int = 2,
    step_j: float = 1.0,
    committed_per_round: float = 1.0,
    step_s: float = 0.01,
    prefill_j: float = 0.0,
    decode: bool = True,
    seed: int = 0,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Rows of one cell attempt: each wave has `concurrency` requests of 100 tokens at the given energy a step."""
    scheme, k = "plain", 0
    if drafter in DRAFTERS:
        scheme, k = DRAFTERS[drafter][:2]
    elif drafter == "plain-matched":
        scheme = drafter
    out = []
    tokens = 100
    for wave in range(waves):
        rounds_each = (tokens - 1) / committed_per_round
        steps = round(rounds_each)
        for window in ("generation", "decode") if decode else ("generation",):
            first = concurrency if window == "generation" else 0
            rounds = steps * concurrency
            committed = first + round(rounds * committed_per_round)
            energy = steps * step_j + (prefill_j if window == "generation" else 0.0)
            seconds = steps * step_s
            values: dict[str, Any] = {
                "drafter": drafter, "scheme": scheme, "draft_tokens": k, "verify_width": k + 1,
                "concurrency": concurrency, "waves": waves, "wave": wave, "window": window, "seed": seed,
                "energy_j": energy, "energy_uncertainty_j": 0.005 * energy, "energy_naive_j": energy,
                "power_integral_j": energy, "duration_s": seconds, "power_mean_w": energy / seconds,
                "committed_tokens": committed, "rounds": rounds, "steps": steps,
                "committed_per_round": (committed - first) / rounds, "proposed_tokens": rounds * k,
                "accepted_draft_tokens": committed - first - rounds, "realized_batch": float(concurrency),
                "realized_batch_min": concurrency, "realized_batch_peak": concurrency,
                "throughput_tok_s": committed / seconds, "itl_mean_ms": 1000 * seconds / (tokens - 1),
                "itl_p50_ms": 1000 * step_s, "itl_p95_ms": 1100 * step_s, "itl_p99_ms": 1200 * step_s,
                "ttft_mean_ms": 30.0, "unique_prompts": concurrency, "prompt_tokens": 50 * concurrency,
                "truncated_requests": concurrency,
            }  # fmt: skip
            out.append(row(**{**values, **changes}))
    return out


def study(
    *,
    models: Iterable[str] = ("M",),
    gpus: Iterable[str] = ("G",),
    drafters: Iterable[str] = ("ngram-4", "dflash-16", "dspark-7"),
    concurrencies: Iterable[int] = (1, 4, 16, 64),
    corpora: Iterable[str] = ("code",),
    seeds: Iterable[int] = (0, 1, 2),
    **changes: Any,
) -> pd.DataFrame:
    """A small regular study with known ratios: rho = r_E / A up to rounding, seeds differ by 1 % steps."""
    import math

    rows: list[dict[str, Any]] = []
    for model in models:
        for gpu in gpus:
            for corpus in corpora:
                for seed in seeds:
                    wiggle = 1 + 0.01 * (seed - 1)
                    for c in concurrencies:
                        base = {
                            "model": model, "gpu": gpu, "corpus": corpus, "seed": seed, "concurrency": c,
                            "gpu_uuid": f"{gpu}-0", **changes,
                        }  # fmt: skip
                        plain_j = 1.0 + 0.02 * c
                        rows += cell("plain", step_j=plain_j, **base)
                        for name in drafters:
                            _, _, a, factor, growth = DRAFTERS[name]
                            factor = factor + growth * math.log2(c)
                            rows += cell(
                                name, step_j=plain_j * factor * wiggle, committed_per_round=a, step_s=0.012, **base
                            )
                        rows += cell("plain", step_j=plain_j, role="reference", launch=9, **base)
    return frame(rows)


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a collected frame."""
    return pd.DataFrame(rows, columns=COLUMNS)
