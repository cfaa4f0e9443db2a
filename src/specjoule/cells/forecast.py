"""What a cell will take, before anything is measured: only to fix the number of waves and to plan time."""

from __future__ import annotations

import math
from itertools import pairwise

from specjoule.study.catalogue import Gpu, Model

FALLBACK_ITL_MS = 30.0
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "float8_e4m3fn": 1, "int8": 1, "int4": 0.5}


def plain_itl_ms(model: Model, gpu: Gpu, concurrency: int) -> float:
    """Return the forecast time of one plain step at `concurrency`, ms.

    From the model's own `forecast_itl_ms` (interpolated over log concurrency, flat beyond its ends), else from the
    memory roofline: weights and 1024 tokens of KV a request over the bandwidth, plus 20 % for launches.
    """
    table = model.forecast_itl_ms.get(gpu.name)
    if table:
        return _interpolated(table, concurrency)
    if gpu.bandwidth_byte_s is None:
        return FALLBACK_ITL_MS
    a = model.architecture
    active = a.active_parameters or a.parameters
    if a.experts and a.experts_per_token:
        reach = 1 - (1 - a.experts_per_token / a.experts) ** concurrency
        active = min(a.parameters, active + (a.parameters - active) * max(0.0, reach - a.experts_per_token / a.experts))
    weight_bytes = active * _DTYPE_BYTES.get(model.weight_dtype, 2)
    kv = a.kv_bytes_per_token or 2 * (a.attention_layers or a.layers) * a.kv_heads * a.head_dim * 2
    return 1.2e3 * (weight_bytes + concurrency * 1024 * kv) / gpu.bandwidth_byte_s


def n_waves(
    *,
    concurrency: int,
    pool: int,
    min_prompts: int,
    min_window_s: float,
    max_new_tokens: int,
    itl_ms: float,
    speedup: float,
) -> int:
    """Return how many batches of distinct prompts a cell runs: the same for every drafter, fixed beforehand.

    Enough for `min_prompts`, and for `min_window_s` on the fastest side's forecast (`itl_ms` / `speedup` a token), at
    most what the pool holds; at least 1 even where the pool cannot fill one batch (the cell is then infeasible).
    """
    by_prompts = math.ceil(min_prompts / concurrency)
    wave_s = max_new_tokens * itl_ms / speedup / 1e3
    by_time = math.ceil(min_window_s / wave_s) if wave_s > 0 else 1
    return max(1, min(max(by_prompts, by_time), pool // concurrency))


def _interpolated(table: dict[int, float], concurrency: int) -> float:
    points = sorted(table.items())
    if concurrency <= points[0][0]:
        return points[0][1]
    for (c0, v0), (c1, v1) in pairwise(points):
        if concurrency <= c1:
            share = math.log(concurrency / c0) / math.log(c1 / c0)
            return v0 + (v1 - v0) * share
    return points[-1][1]
