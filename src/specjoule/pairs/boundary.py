"""A wider boundary: processor and memory of the host beside the board, and the factors other studies report."""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS


def host_per_token(host_j_per_round: float, requests: float, tokens_per_round: float) -> float:
    """Host energy per committed token, J/token: joules a round over tokens of all requests in the round."""
    return host_j_per_round / (requests * tokens_per_round)


def total_per_token(board_w: float, host_w: float, tokens_s: float) -> float:
    """Energy per token of board and host, J/token: summed power over throughput."""
    return (board_w + host_w) / tokens_s


def factors(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return per configuration the factors by which speculation is faster and thriftier (above 1: better).

    gamma_t = t_plain/t_spec (time per token), gamma_board = E_plain/E_spec per token on the board, gamma_total the same
    on board plus host (processor packages and DRAM) where both sides have a host reading. Medians over seeds of paired
    factors. `total_spec_j`, `total_plain_j` (J/token) and `ratio_total` belong to board plus host; the board's own
    ratio stands beside them and is the headline.
    """
    work = pairs.copy()
    if work.empty:
        return pd.DataFrame(columns=["model", "gpu", "drafter", "n_seeds", "gamma_t", "gamma_board", "gamma_total"])
    work["gamma_t"] = work["speedup"]
    work["gamma_board"] = 1.0 / work["energy_ratio"]
    for side in ("spec", "plain"):
        host = pd.to_numeric(work[f"host_energy_{side}_j"]) if f"host_energy_{side}_j" in work else np.nan
        work[f"total_{side}_j"] = (work[f"energy_{side}_j"] + host) / work[f"tokens_{side}"]
        work[f"host_{side}_j"] = host / work[f"tokens_{side}"]
    work["gamma_total"] = work["total_plain_j"] / work["total_spec_j"]
    work["ratio_total"] = 1.0 / work["gamma_total"]
    keys = [k for k in GROUP_KEYS if k in work.columns]
    values = ["gamma_t", "gamma_board", "gamma_total", "ratio_total", "host_spec_j", "host_plain_j", "total_spec_j",
              "total_plain_j"]  # fmt: skip
    grouped = work.groupby(keys, dropna=False, sort=True)
    out = grouped[values].median()
    out.insert(0, "n_seeds", grouped["seed"].nunique())
    return out.reset_index()
