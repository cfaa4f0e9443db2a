"""What must agree before two cells may be divided by each other.

A paired ratio answers one question: what does the drafter change, everything else being equal? "Everything else" is
listed here by name. `PARTNER_KEYS` find the plain partner of a cell (they are the study's factors, within one segment);
`SETTING_KEYS` must then agree too, or the pair is excluded with the names that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

PARTNER_KEYS: tuple[str, ...] = (
    "study", "site", "block_id", "segment_id", "model", "gpu", "n_gpus", "corpus", "concurrency", "context_tokens",
    "seed", "replicate", "capture", "locked_mhz", "max_new_tokens", "ignore_eos", "instrumentation",
)  # fmt: skip
"""Factors of the study: the plain cell with the same values in the same segment is the partner."""

RELAXED_KEYS: frozenset[str] = frozenset({"capture", "locked_mhz", "max_new_tokens", "ignore_eos", "n_gpus"})
"""Factors that, where no partner agrees in them, are named as the difference instead of 'no partner'."""

SETTING_KEYS: tuple[str, ...] = (
    "gpu_uuid", "driver", "ecc", "power_limit_w", "weight_dtype", "kv_dtype", "sampling", "chat_template", "waves",
    "pool_digest", "prompt_tokens", "engine", "engine_version", "model_revision", "protocol_version", "meter",
    "boot_id", "host", "cpu_model", "numa_node", "governor",
)  # fmt: skip
"""Settings of board, machine, text and software that must be equal on both sides (null equals null only)."""

PAIR_KEYS: tuple[str, ...] = PARTNER_KEYS + SETTING_KEYS
"""Every column that must be equal on both sides of a pair."""

ATTEMPT_KEYS: tuple[str, ...] = (
    "study", "site", "block_id", "segment_id", "cell_hash", "launch", "attempt", "role",
)  # fmt: skip
"""What tells one attempt of a cell from every other."""

CELL_KEYS: tuple[str, ...] = ("study", "site", "block_id", "cell_hash")
"""What tells one cell from every other; a cell may have attempts in several segments."""


def group_ids(frame: pd.DataFrame, keys: tuple[str, ...] | list[str]) -> npt.NDArray[np.int64]:
    """Return one integer per row, equal where all `keys` are equal; null equals null. Ids count up in row order."""
    if frame.empty:
        return np.empty(0, dtype=np.int64)
    present = [k for k in keys if k in frame.columns]
    ids = frame.groupby(present, dropna=False, sort=False, observed=True).ngroup()
    return np.asarray(ids, dtype=np.int64)


def side_by_side(
    frame: pd.DataFrame, keys: list[str], column: str, values: str, names: tuple[str, ...]
) -> pd.DataFrame:
    """Return one row per combination of `keys` that occurs, with the mean of `values` for each of `names` in `column`.

    Null equals null. A pivot that keeps nulls would make a row of every conceivable combination: at a full grid,
    hundreds of millions.
    """
    out = frame[keys].drop_duplicates().sort_values(keys, kind="stable")
    for name in names:
        mean = frame.loc[frame[column] == name].groupby(keys, dropna=False)[values].mean()
        out = out.merge(mean.rename(name).reset_index(), on=keys, how="left")
    return out.reset_index(drop=True)


def differing_keys(
    left: Mapping[str, Any], right: Mapping[str, Any], keys: tuple[str, ...] = PAIR_KEYS
) -> tuple[str, ...]:
    """Name the keys in which the two sides differ; a key that neither side has is no difference."""
    return tuple(k for k in keys if not _same(left.get(k), right.get(k)))


def _same(a: Any, b: Any) -> bool:
    null_a, null_b = bool(pd.isna(a)), bool(pd.isna(b))
    if null_a or null_b:
        return null_a and null_b
    return bool(a == b)
