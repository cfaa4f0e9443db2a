"""Fast simulated studies with known truth, for tests of the statistics. Everything here is simulated, not measured.

A study is one or more models; a block (one seed) launches plain and every drafter once on one board, measures cells in
random order, and ends with a closing plain. What disturbs a pair, all independent of each other:

- prompts: the tokens a request commits per round are skewed (log-normal over prompts), so that a batch's ragged end and
  its ratio depend on which prompts were drawn;
- launch: every launch of a server has its own factor on energy;
- board: every board prices verified positions differently, shared by all drafters of a block;
- drift: the board warms or cools over the block, linearly in the order of cells;
- meter: every window's energy carries its own reading error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """Sizes of all effects; standard deviations are relative (0.01 = 1 %)."""

    drafters: dict[str, tuple[str, int, float]] = field(
        default_factory=lambda: {
            "ngram-4": ("ngram", 3, 1.6),
            "mtp-4": ("mtp", 3, 2.6),
            "dflash-16": ("dflash", 15, 4.0),
        }
    )
    """Name: (scheme, k, mean of the kept drafts plus one)."""
    concurrencies: tuple[int, ...] = (1, 4, 16, 64)
    models: int = 1
    max_new_tokens: int = 128
    min_prompts: int = 16
    prompt_skew: float = 0.35
    """Standard deviation of log(kept drafts per round) over prompts: right-skewed."""
    launch: float = 0.006
    board: float = 0.008
    drift: float = 0.01
    """Standard deviation of the drift from a block's first to its last cell."""
    meter: float = 0.004
    """Relative reading error of one 5-s window (95 % half-width is twice this)."""
    fixed_step_j: float = 1.0
    row_j: float = 0.012
    """Energy per verified position."""


def waves_of(truth: Truth, concurrency: int) -> int:
    """Number of batches of a cell: as many as give `min_prompts` prompts."""
    return max(1, math.ceil(truth.min_prompts / concurrency))


def kept_mean(truth: Truth, drafter: str, quantile: npt.ArrayLike) -> F64:
    """Mean tokens committed per round for prompts at standard-normal score `quantile`; at most k + 1."""
    _, k, a = truth.drafters[drafter]
    score = np.asarray(quantile, dtype=np.float64)
    kept = (a - 1.0) * np.exp(truth.prompt_skew * score - truth.prompt_skew**2 / 2)
    return np.asarray(np.minimum(1.0 + kept, k + 1.0), dtype=np.float64)


def wave_cost(truth: Truth, committed_per_round: F64, width: int) -> tuple[F64, F64, F64]:
    """Energy (J), steps and rounds of waves, from each request's A (last axis: requests of the wave).

    A step costs `fixed_step_j` plus `row_j` per position of the requests that still run: a ragged end costs energy.
    """
    rounds = np.ceil((truth.max_new_tokens - 1) / committed_per_round)
    steps = rounds.max(axis=-1)
    energy = truth.fixed_step_j * steps + truth.row_j * width * rounds.sum(axis=-1)
    return energy, steps, rounds.sum(axis=-1)


def true_ratio(truth: Truth, drafter: str, concurrency: int, prompts: int = 1_000_000, seed: int = 1) -> float:
    """Energy ratio of an infinite study: expected energies of both sides over their tokens, without disturbances."""
    rng = np.random.default_rng(seed)
    a = kept_mean(truth, drafter, rng.standard_normal((prompts // concurrency, concurrency)))
    spec, _, _ = wave_cost(truth, a, truth.drafters[drafter][1] + 1)
    plain, _, _ = wave_cost(truth, np.ones((1, concurrency)), 1)
    return float(spec.mean() / plain[0])


def simulate(truth: Truth, n_seeds: int, *, studies: int = 1, seed: int = 0, one_board: bool = False) -> pd.DataFrame:
    """Return collected rows (generation windows) of `studies` independent studies, named 'sim-0', 'sim-1', ...

    `one_board`: all blocks of a study share one board, otherwise each block draws its own.
    """
    rng = np.random.default_rng(seed)
    names = ["plain", *truth.drafters, "plain#closing"]
    blocks = studies * truth.models * n_seeds
    launch = rng.normal(0.0, truth.launch, (blocks, len(names)))
    board = rng.normal(0.0, truth.board, (studies * truth.models, 1) if one_board else (blocks, 1))
    board = np.repeat(board, n_seeds, axis=0) if one_board else board
    drift = rng.normal(0.0, truth.drift, blocks)
    order = np.argsort(rng.random((blocks, len(truth.drafters) + 1)), axis=1).argsort(axis=1)
    position = np.concatenate([order / (len(names) - 1), np.ones((blocks, 1))], axis=1)
    frames = []
    # a seed draws one ordered list of prompts; every drafter and concurrency of the block takes them from its start
    drawn = rng.standard_normal((blocks, max(waves_of(truth, c) * c for c in truth.concurrencies)))
    for c in truth.concurrencies:
        waves = waves_of(truth, c)
        score = drawn[:, : waves * c].reshape(blocks, waves, c)
        for i, name in enumerate(names):
            drafter = name.partition("#")[0]
            scheme, k = ("plain", 0) if drafter == "plain" else truth.drafters[drafter][:2]
            a = np.ones_like(score) if drafter == "plain" else kept_mean(truth, drafter, score)
            energy, steps, rounds = wave_cost(truth, a, k + 1)
            pricing = board * math.log2(k + 1) / 4.0
            factor = np.exp(launch[:, [i]] + pricing + (drift * position[:, i])[:, None])
            noise = 1.0 + rng.normal(0.0, truth.meter, energy.shape)
            frames.append(_frame(truth, n_seeds, c, waves, name, scheme, k, energy * factor * noise, steps, rounds))
    out = pd.concat(frames, ignore_index=True)
    drifts = out.loc[out["role"] == "reference"].groupby("block_id")["energy_j"].sum()
    first = out.loc[(out["scheme"] == "plain") & (out["role"] == "cell")].groupby("block_id")["energy_j"].sum()
    out["block_drift"] = out["block_id"].map(drifts / first - 1.0)
    return out


def _frame(
    truth: Truth, n_seeds: int, c: int, waves: int, name: str, scheme: str, k: int, energy: F64, steps: F64, rounds: F64
) -> pd.DataFrame:
    blocks = energy.shape[0]
    block = np.repeat(np.arange(blocks), waves)
    drafter, _, closing = name.partition("#")
    study, rest = np.divmod(block, truth.models * n_seeds)
    model, seed = np.divmod(rest, n_seeds)
    ids = pd.Series(block).astype("str")
    tokens = float(truth.max_new_tokens * c)
    flat = {
        "study": "sim-" + pd.Series(study).astype("str"), "model": "model-" + pd.Series(model).astype("str"),
        "seed": seed, "wave": np.tile(np.arange(waves), blocks), "block_id": "block-" + ids,
        "segment_id": "segment-" + ids, "gpu_uuid": "GPU-" + ids,
        "cell_hash": f"{drafter}-{c}-" + ids, "energy_j": energy.ravel(), "steps": steps.ravel(),
        "rounds": rounds.ravel(),
    }  # fmt: skip
    out = pd.DataFrame(flat)
    constant: dict[str, Any] = {
        "site": None, "gpu": "sim", "n_gpus": 1, "drafter": drafter, "scheme": scheme, "draft_tokens": k,
        "verify_width": k + 1, "concurrency": c, "corpus": "code", "context_tokens": None, "replicate": 0,
        "waves": waves, "window": "generation", "capture": True, "locked_mhz": None, "ignore_eos": True,
        "instrumentation": None,
        "max_new_tokens": truth.max_new_tokens, "engine": "simulated", "meter": "simulated", "status": "ok",
        "reason": None, "reason_detail": None, "validity": "valid", "validity_reason": None, "attempt": 1,
        "launch": 9 if closing else 0, "role": "reference" if closing else "cell", "committed_tokens": tokens,
        "prompt_tokens": 50 * c, "unique_prompts": c, "started_at": "2026-01-01T00:00:00Z",
        "realized_batch": float(c), "cut_tokens": 0,
    }  # fmt: skip
    out = out.assign(**constant)
    out["committed_per_round"] = (tokens - c) / out["rounds"]
    out["accepted_draft_tokens"] = tokens - c - out["rounds"]
    out["duration_s"] = 0.02 * out["steps"]
    out["energy_uncertainty_j"] = 2.0 * truth.meter * out["energy_j"]
    out["itl_mean_ms"] = 1000.0 * out["duration_s"] / truth.max_new_tokens
    out["raw_file"] = out["cell_hash"] + ".parquet"
    return out
