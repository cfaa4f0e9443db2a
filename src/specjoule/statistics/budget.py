"""Error budget of every configuration: which disturbance contributes how much to the paired ratio."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS

F64 = npt.NDArray[np.float64]

COMPONENTS: tuple[str, ...] = (
    "meter_percent", "lag_percent", "drift_percent", "board_percent", "launch_percent", "prompts_percent",
    "instrumentation_percent",
)  # fmt: skip


def error_budget(pairs: pd.DataFrame, table: pd.DataFrame, keys: tuple[str, ...] = GROUP_KEYS) -> pd.DataFrame:
    """Return one row per configuration with standard deviations of *one pair's* log ratio by source, in percent.

    - `meter_percent`: the windows' stated uncertainty (95 %) of both sides, halved and joined in quadrature;
    - `lag_percent`: what an uncorrected lag error of one tenth of the counter's lag would leave in the ratio, the
      speculative window being shorter: 0.1 lag |1/T_spec - 1/T_plain|; null where no lag is known;
    - `drift_percent`: rms of the blocks' drift over sqrt(6): the mean square distance of two random positions of a
      block is a sixth of its length squared;
    - `board_percent`: standard deviation between boards of the board means of log ratios (null with one board);
    - `launch_percent`: rms of closing plain against first plain (two launches; drift is in it too);
    - `prompts_percent`: what differences between waves within blocks explain (null where no wave can tell);
    - `instrumentation_percent`: largest delay of the client over the interval between tokens; null where not recorded;
    - `total_percent`: the observed standard deviation between blocks (own), beside `expected_percent`, the moderated
      one. Components overlap (launch holds drift, prompts hold reading errors) and are not meant to add up.
    """
    present = [k for k in keys if k in pairs.columns]
    if pairs.empty:
        return pd.DataFrame(columns=[*present, *COMPONENTS])
    work = pairs.copy()
    work["_y"] = np.log(work["energy_ratio"].to_numpy(dtype=np.float64))
    spec = _column(work, "uncertainty_spec_j") / _column(work, "energy_spec_j")
    plain = _column(work, "uncertainty_plain_j") / _column(work, "energy_plain_j")
    work["_meter"] = (spec**2 + plain**2) / 4.0
    lag = _column(work, "meter_lag_ms") / 1000.0
    per_wave = _column(work, "n_waves") if "n_waves" in work else np.ones(len(work))
    seconds = [per_wave / _column(work, f"duration_{s}_s") for s in ("spec", "plain")]
    work["_lag"] = np.abs(0.1 * lag * (seconds[0] - seconds[1]))
    work["_drift2"] = np.log1p(_column(work, "block_drift")) ** 2
    work["_client"] = _column(work, "client_lag_ms") / _column(work, "duration_spec_s") / 1000.0
    grouped = work.groupby(present, dropna=False, sort=True)
    out = grouped.agg(
        n_pairs=("_y", "size"), _meter=("_meter", "mean"), lag_percent=("_lag", "mean"), _drift2=("_drift2", "mean"),
        instrumentation_percent=("_client", "mean"), total_percent=("_y", "std"),
    ).reset_index()  # fmt: skip
    boards = work.groupby([*present, "gpu_uuid"], dropna=False)["_y"].mean().reset_index()
    spread = boards.groupby(present, dropna=False)["_y"].std().reset_index().rename(columns={"_y": "board_percent"})
    out = out.merge(spread, on=present, how="left")
    out["meter_percent"] = np.sqrt(out.pop("_meter"))
    drift2 = out.pop("_drift2")
    out["drift_percent"], out["launch_percent"] = np.sqrt(drift2 / 6.0), np.sqrt(drift2)
    aligned = out[present].merge(table, on=present, how="left")
    out["prompts_percent"] = np.sqrt(aligned["var_prompts"].to_numpy()) if "var_prompts" in aligned else np.nan
    out["prompts_percent"] = out["prompts_percent"].where(out["prompts_percent"] > 0)
    out["expected_percent"] = aligned["log_se"].to_numpy() * np.sqrt(out["n_pairs"])
    percent = [*COMPONENTS, "total_percent", "expected_percent"]
    out[percent] = 100.0 * out[percent]
    known = out[list(COMPONENTS)]
    largest = known.fillna(-1.0).idxmax(axis=1).astype("str").str.removesuffix("_percent")
    out["largest"] = largest.where(known.notna().any(axis=1))
    return out[[*present, "n_pairs", *percent, "largest"]]


def _column(frame: pd.DataFrame, name: str) -> F64:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    return pd.to_numeric(frame[name]).to_numpy(dtype=np.float64, na_value=np.nan)
