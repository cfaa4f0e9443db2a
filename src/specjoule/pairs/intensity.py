"""Arithmetic intensity of every configuration that ran, from the sizes of its model; dense models only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from specjoule.pairs.roofline import StepCost, attainable_flop_s, crossing_batch, intensity
from specjoule.study.catalogue import Gpu, Model

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}


def step_cost(model: Model) -> StepCost | None:
    """Return what a step of a dense model costs: F = 2 x parameters, weights and KV in bytes; None for experts.

    KV of attention layers only; 2 x layers x KV heads x head size x bytes where the catalogue gives no figure.
    """
    a = model.architecture
    if a.experts:
        return None
    layers = a.attention_layers if a.attention_layers is not None else a.layers
    kv = a.kv_bytes_per_token or 2.0 * layers * a.kv_heads * a.head_dim * DTYPE_BYTES.get(model.kv_dtype, 2.0)
    return StepCost(2.0 * a.parameters, a.parameters * DTYPE_BYTES.get(model.weight_dtype, 2.0), kv)


def intensity_points(counted: pd.DataFrame, models: Mapping[str, Model], gpus: Mapping[str, Gpu]) -> pd.DataFrame:
    """Return per configuration the intensity of a step (FLOP/byte), the board's balance and the batch that crosses it.

    Context is the mean prompt plus half the answer, tokens. `achieved_flop_s` is work delivered: verified positions x F
    over the time of the window; `attainable_flop_s` is the roofline at that intensity. A trend: positions of one
    request share KV reads, drafting and launches are left out.
    """
    keys = ["model", "gpu", "drafter", "scheme", "verify_width", "concurrency", "corpus", "context_tokens", "capture",
            "locked_mhz", "meter"]  # fmt: skip
    known = counted.loc[counted["model"].isin([m for m, v in models.items() if step_cost(v)])].copy()
    known = known.loc[known["gpu"].isin([g for g, v in gpus.items() if v.balance_flop_per_byte])]
    columns = [*keys, "realized_batch", "context_mean_tokens", "intensity_flop_per_byte", "balance_flop_per_byte",
               "crossing_batch", "achieved_flop_s", "attainable_flop_s"]  # fmt: skip
    if known.empty:
        return pd.DataFrame(columns=columns)
    known["context_mean_tokens"] = known["prompt_tokens"] / known["unique_prompts"] + known["max_new_tokens"] / 2.0
    known["positions_s"] = known["rounds"] * known["verify_width"] / known["duration_s"]
    out = known.groupby(keys, dropna=False)[["realized_batch", "context_mean_tokens", "positions_s"]].median()
    out = out.reset_index()
    parts = []
    for (model, gpu), part in out.groupby(["model", "gpu"]):
        cost, board = step_cost(models[str(model)]), gpus[str(gpu)]
        assert cost is not None and board.balance_flop_per_byte is not None
        balance = board.balance_flop_per_byte
        context = float(part["context_mean_tokens"].mean())
        i = intensity(cost, part["concurrency"].to_numpy(), part["verify_width"].to_numpy(), context)
        roof = (
            attainable_flop_s(i, board.peak_flop_s, board.bandwidth_byte_s)
            if board.peak_flop_s and board.bandwidth_byte_s
            else np.full(len(part), np.nan)
        )
        crossing = [crossing_batch(cost, float(w), context, balance) for w in part["verify_width"]]
        parts.append(part.assign(
            intensity_flop_per_byte=i, balance_flop_per_byte=balance, crossing_batch=crossing,
            achieved_flop_s=part["positions_s"] * cost.flop_per_position, attainable_flop_s=roof,
        ))  # fmt: skip
    return pd.concat(parts, ignore_index=True)[columns]
