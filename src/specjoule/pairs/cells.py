"""From rows (one a wave and window) to cells: what one attempt of a cell consumed and delivered over all its waves.

A cell's numbers are ratios of sums over its waves (sum of joules over sum of tokens), never means of the waves' ratios:
a wave that delivers more tokens counts for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.errors import StoreError
from specjoule.pairs.keys import ATTEMPT_KEYS, PARTNER_KEYS, SETTING_KEYS, group_ids
from specjoule.reasons import Reason
from specjoule.windows.schema import BY_NAME, NESTED, SCALARS

F64 = npt.NDArray[np.float64]

_STATUS_RANK = {"ok": 0, "partial": 1, "infeasible": 2, "failed": 3}
_VALIDITY_RANK = {"valid": 0, "not_measured": 1, "invalid": 2}

_SUMMED = (
    "energy_j", "energy_uncertainty_j", "energy_naive_j", "power_integral_j", "host_energy_j", "energy_true_j",
    "committed_tokens", "rounds", "steps", "proposed_tokens", "accepted_draft_tokens", "cut_tokens", "eos_requests",
    "truncated_requests", "unique_prompts", "cached_tokens", "prompt_tokens", "degenerate_requests",
    "language_ok_requests", "duration_s",
)  # fmt: skip
_TOKEN_WEIGHTED = ("itl_mean_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "ttft_mean_ms")
_TIME_WEIGHTED = ("realized_batch", "sm_clock_mean_mhz", "power_capped_share")
_LARGEST = ("stall_max_ms", "temperature_max_c", "realized_batch_peak", "client_lag_ms", "foreign_processes")
_SMALLEST = ("realized_batch_min", "sm_clock_min_mhz")
_PER_WAVE = {
    *_SUMMED, *_TOKEN_WEIGHTED, *_TIME_WEIGHTED, *_LARGEST, *_SMALLEST, *NESTED,
    "wave", "t_start_ns", "t_end_ns", "energy_start_j", "energy_end_j", "power_mean_w", "committed_per_round",
    "throughput_tok_s", "status", "reason", "flags", "throttle_reasons", "realized_batch_engine", "validity",
    "validity_reason", "schema_version", "window",
}  # fmt: skip
IDENTITY: tuple[str, ...] = tuple(n for n in SCALARS if n not in _PER_WAVE)
"""Columns that are the same in every wave of an attempt; the first wave's value is kept."""
_SAME_IN_EVERY_WAVE: tuple[str, ...] = tuple(
    k for k in (*PARTNER_KEYS, "drafter", "scheme", "draft_tokens", "verify_width", *SETTING_KEYS) if k not in _PER_WAVE
)
"""Of these, what a ratio stands on: an attempt in which one of them changed is no measurement of one thing."""


def sum_waves(rows: pd.DataFrame, window: Literal["generation", "decode"] = "generation") -> pd.DataFrame:
    """Return one row per cell attempt with its sums over waves.

    Sums (J, tokens, rounds, steps, s) are null where any wave's value is null, never a partial sum. Derived:

    - `j_per_token` = sum of energy_j / sum of committed_tokens (J/token); `j_per_step` = energy / steps (J/step);
    - `committed_per_round` A = tokens committed after the prefill / rounds (tokens per request and round);
    - `power_mean_w`, `throughput_tok_s` over the summed duration;
    - inter-token and first-token latencies weighted by committed tokens (percentiles: the weighted mean of the waves'
      percentiles), realized batch, clock and capping weighted by duration, extremes over waves;
    - `energy_uncertainty_j` summed linearly over waves (J, 95 %): the lag's share is common to all of them;
    - `n_waves`, `complete` (every wave of the cell is there), `status` and `validity` of the worst wave, `reason` and
      `validity_reason` united over waves; an attempt whose waves differ in board, settings or software is invalid
      (`keys_differ`, the names in `reason_detail`).

    `rows` are collected rows; rows of other windows are ignored. Nothing is excluded here. Raises StoreError, naming
    the raw file, for a status or validity that is not known.
    """
    part = rows.loc[rows["window"] == window]
    part = part.sort_values("wave", kind="stable")
    gid = group_ids(part, ATTEMPT_KEYS)
    n = int(gid.max()) + 1 if len(gid) else 0
    first = _first_positions(gid, n)
    kept = [c for c in (*IDENTITY, "raw_file", "block_drift") if c in part.columns]
    cells = _typed(part.iloc[first][kept].reset_index(drop=True))
    cells["window"] = window
    for name in _SUMMED:
        if name in part.columns:
            cells[name] = _sum(gid, n, _float(part, name))
    tokens, seconds = _float(part, "committed_tokens"), _float(part, "duration_s")
    weighted = [(name, tokens) for name in _TOKEN_WEIGHTED] + [(name, seconds) for name in _TIME_WEIGHTED]
    for name, weights in weighted:
        if name in part.columns:
            cells[name] = _weighted_mean(gid, n, _float(part, name), weights)
    extremes = [(name, "max") for name in _LARGEST] + [(name, "min") for name in _SMALLEST]
    for name, how in extremes:
        if name in part.columns:
            cells[name] = pd.Series(_float(part, name)).groupby(gid).agg(how).reindex(range(n)).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        after_prefill = _sum(gid, n, _after_prefill(part))
        energy, duration = cells["energy_j"].to_numpy(), cells["duration_s"].to_numpy()
        cells["committed_after_prefill"] = after_prefill
        cells["committed_per_round"] = _ratio(after_prefill, cells["rounds"].to_numpy())
        cells["j_per_token"] = _ratio(energy, cells["committed_tokens"].to_numpy())
        cells["j_per_step"] = _ratio(energy, cells["steps"].to_numpy())
        cells["power_mean_w"] = _ratio(energy, duration)
        cells["throughput_tok_s"] = _ratio(cells["committed_tokens"].to_numpy(), duration)
    waves_seen = part["wave"].groupby(gid).nunique().reindex(range(n)).to_numpy()
    cells["n_waves"] = waves_seen
    cells["complete"] = waves_seen == cells["waves"].to_numpy()
    cells["status"] = _worst(part, gid, n, "status", _STATUS_RANK)
    cells["validity"] = _worst(part, gid, n, "validity", _VALIDITY_RANK)
    for name in ("reason", "validity_reason"):
        cells[name] = _united(part, gid, n, name)
    return _judged_by_waves(cells, _differing_between_waves(part, gid, first))


def _differing_between_waves(
    part: pd.DataFrame, gid: npt.NDArray[np.int64], first: npt.NDArray[np.int64]
) -> dict[int, str]:
    """Return, by group, the names of the keys in which a wave differs from the group's first; null equals null."""
    found: dict[int, list[str]] = {}
    for key in _SAME_IN_EVERY_WAVE:
        if key in part.columns:
            codes, _ = pd.factorize(part[key])
            for group in np.unique(gid[codes != codes[first][gid]]).tolist():
                found.setdefault(group, []).append(key)
    return {group: ",".join(keys) for group, keys in found.items()}


def _judged_by_waves(cells: pd.DataFrame, differing: Mapping[int, str]) -> pd.DataFrame:
    """Make attempts invalid whose waves differ; what was not measured keeps its own reason."""
    before = cells["validity_reason"].fillna("").astype("str").tolist()
    for group, keys in differing.items():
        if cells.at[group, "validity"] != "not_measured":
            cells.at[group, "validity"] = "invalid"
            cells.at[group, "validity_reason"] = join_codes([before[group], Reason.KEYS_DIFFER.value])
            cells.at[group, "reason_detail"] = f"between waves: {keys}"
    return cells


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Give columns that pandas holds as objects (all null, mixed) the type of the schema, so that joins agree."""
    import pyarrow as pa

    for name in frame.select_dtypes(include=["object", "str"]).columns:
        column = BY_NAME.get(str(name))
        if column is None:
            continue
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            frame[name] = pd.to_numeric(frame[name]).astype("float64")
        elif pa.types.is_string(column.type):
            frame[name] = frame[name].astype("str")
    return frame


def _first_positions(gid: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    _, first = np.unique(gid, return_index=True)
    assert len(first) == n
    return np.asarray(first, dtype=np.int64)


def _sum(gid: npt.NDArray[np.int64], n: int, values: F64) -> F64:
    """Sum per group; null where any value of the group is null."""
    return np.asarray(np.bincount(gid, weights=values, minlength=n), dtype=np.float64)


def _float(frame: pd.DataFrame, name: str) -> F64:
    return pd.to_numeric(frame[name]).to_numpy(dtype=np.float64, na_value=np.nan)


def _after_prefill(part: pd.DataFrame) -> F64:
    """Tokens committed after the prefill: A times rounds, or accepted + rounds - cut where A is null."""
    rounds = _float(part, "rounds")
    stated = _float(part, "committed_per_round") * rounds
    counted = _float(part, "accepted_draft_tokens") + rounds - np.nan_to_num(_float(part, "cut_tokens"))
    return np.where(np.isnan(stated), counted, stated)


def _ratio(top: F64, bottom: F64) -> F64:
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.nan)


def _weighted_mean(gid: npt.NDArray[np.int64], n: int, values: F64, weights: F64) -> F64:
    known = ~np.isnan(values) & ~np.isnan(weights)
    total = _sum(gid[known], n, weights[known] * values[known])
    return _ratio(total, _sum(gid[known], n, weights[known]))


def _worst(part: pd.DataFrame, gid: npt.NDArray[np.int64], n: int, name: str, rank: dict[str, int]) -> list[str]:
    ranks = part[name].map(rank)
    if ranks.isna().any():
        row = part.loc[ranks.isna()].iloc[0]
        raise StoreError(f"{row.get('raw_file')}: {name} '{row[name]}' is none of {', '.join(rank)}")
    codes = ranks.to_numpy(dtype=np.int64)
    worst = np.zeros(n, dtype=np.int64)
    np.maximum.at(worst, gid, codes)
    words = list(rank)
    return [words[i] for i in worst]


def _united(part: pd.DataFrame, gid: npt.NDArray[np.int64], n: int, name: str) -> pd.Series[str]:
    """Unite comma-separated codes over waves, in order of first appearance; null where there is none."""
    known = part[name].notna().to_numpy() & (part[name] != "").to_numpy(dtype=bool, na_value=False)
    out = pd.Series([None] * n, dtype="str")
    pairs = pd.DataFrame({"gid": gid[known], "codes": part[name].to_numpy()[known]}).drop_duplicates()
    for group, codes in pairs.groupby("gid")["codes"]:
        out.iloc[int(str(group))] = join_codes(codes)
    return out


def join_codes(codes: object) -> str:
    """Join comma-separated reason codes into one such list without repeats, in order of first appearance."""
    seen: dict[str, None] = {}
    for text in codes:  # type: ignore[attr-defined]
        seen.update(dict.fromkeys(c for c in str(text).split(",") if c))
    return ",".join(seen)


assert set(IDENTITY) <= set(BY_NAME)
