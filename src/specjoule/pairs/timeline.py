"""How one block ran: its power and clock, and the windows measured in it."""

from __future__ import annotations

import pandas as pd

_CHANNELS = ("power_w", "sm_clock_mhz")


def block_timeline(samples: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return power and clock samples and windows of the first segment that has samples, in seconds since its start.

    `samples`: `segment_id`, `kind` ('power_w', 'sm_clock_mhz'), `t_ns`, `value`. Long frame: those kinds with
    `seconds`, `value`, and 'window' with `seconds`, `end_seconds` and `drafter`. Empty where there is no trace.
    """
    generation = rows.loc[(rows["window"] == "generation") & rows["t_start_ns"].notna()]
    known = generation.loc[generation["segment_id"].isin(samples["segment_id"].unique())]
    if known.empty:
        return pd.DataFrame()
    segment = known["segment_id"].min()
    part = known.loc[known["segment_id"] == segment]
    trace = samples.loc[samples["segment_id"] == segment]
    origin = float(part["t_start_ns"].min())
    frames = []
    for kind in _CHANNELS:
        mine = trace.loc[trace["kind"] == kind]
        if len(mine):
            frames.append(pd.DataFrame({
                "kind": kind, "seconds": (mine["t_ns"].to_numpy() - origin) / 1e9, "value": mine["value"].to_numpy(),
            }))  # fmt: skip
    windows = pd.DataFrame({
        "kind": "window", "seconds": (part["t_start_ns"].astype("float64") - origin) / 1e9,
        "end_seconds": (part["t_end_ns"].astype("float64") - origin) / 1e9, "drafter": part["drafter"],
        "scheme": part["scheme"], "verify_width": part["verify_width"], "concurrency": part["concurrency"],
        "role": part["role"],
    })  # fmt: skip
    what = f"{part['model'].iloc[0]} on {part['gpu'].iloc[0]}, block {part['block_id'].iloc[0]}"
    return pd.concat([*frames, windows], ignore_index=True).assign(block=what)
