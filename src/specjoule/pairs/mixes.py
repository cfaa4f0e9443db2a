"""Texts mixed: what a workload of several corpora saves, and at which share saving and costing balance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.pairs.summary import GROUP_KEYS
from specjoule.study.model import BASELINES


def mix_ratio(e_spec: Mapping[str, float], e_plain: Mapping[str, float], tokens: Mapping[str, float]) -> float:
    """rho of a mix: sum of N_c e_spec,c over sum of N_c e_plain,c; N_c are output tokens (or shares), not requests."""
    top = sum(tokens[c] * e_spec[c] for c in tokens)
    return top / sum(tokens[c] * e_plain[c] for c in tokens)


def break_even_share(gain_j: float, cost_j: float) -> float:
    """Share of output tokens of the text that saves `gain_j` J/token at which a text that costs `cost_j` cancels it.

    cost / (gain + cost): saves 0.4, costs 0.2 gives one third. Both must be positive, else it is NaN.
    """
    return cost_j / (gain_j + cost_j) if gain_j > 0 and cost_j > 0 else float("nan")


def check_mix(name: str, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares normalised to 1. Raises ConfigurationError for an empty, negative or zero mix."""
    if not shares or any(v < 0 for v in shares.values()) or sum(shares.values()) <= 0:
        raise ConfigurationError(f"mix {name!r}: shares must be positive output-token weights, not {dict(shares)!r}")
    total = sum(shares.values())
    return {k: v / total for k, v in shares.items()}


def mixes_table(pairs: pd.DataFrame, mixes: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return per mix and configuration the paired ratio of the mixed workload: per seed first, then the median.

    Only configurations with every corpus of the mix at the same seed and replicate; `n_seeds` counts those.
    """
    keys = [k for k in GROUP_KEYS if k in pairs.columns and k != "corpus"]
    drafted = pairs.loc[~pairs["scheme"].isin(list(BASELINES))]
    found = []
    for name, wanted in mixes.items():
        shares = check_mix(name, wanted)
        mine = drafted.loc[drafted["corpus"].isin(list(shares))].copy()
        weight = mine["corpus"].map(shares).astype("float64")
        mine["_top"], mine["_bottom"] = weight * mine["e_spec_j"], weight * mine["e_plain_j"]
        per_seed = mine.groupby([*keys, "seed", "replicate"], dropna=False).agg(
            top=("_top", "sum"), bottom=("_bottom", "sum"), corpora=("corpus", "nunique")
        )
        per_seed = per_seed.loc[per_seed["corpora"] == len(shares)].reset_index()
        per_seed["ratio"] = per_seed["top"] / per_seed["bottom"]
        table = per_seed.groupby(keys, dropna=False).agg(
            n_seeds=("seed", "nunique"), ratio_median=("ratio", "median"), ratio_min=("ratio", "min"),
            ratio_max=("ratio", "max"),
        ).reset_index()  # fmt: skip
        table.insert(0, "mix", name)
        table.insert(1, "shares", ", ".join(f"{c} {v:.0%}" for c, v in shares.items()))
        found.append(table)
    if not found:
        return pd.DataFrame(columns=["mix", "shares", *keys, "n_seeds", "ratio_median"])
    out = pd.concat(found, ignore_index=True)
    out["saving_median"] = 1.0 - out["ratio_median"]
    out["ratio_half_range"] = (out["ratio_max"] - out["ratio_min"]) / 2.0
    return out


def break_even_shares(summary: pd.DataFrame) -> pd.DataFrame:
    """Return, per configuration and pair of corpora of which one saves and one costs, the share that balances them.

    `share_of_saving_corpus`: share of output tokens of the corpus that saves above which the workload as a whole saves.
    From median energies per token of each corpus.
    """
    keys = [k for k in GROUP_KEYS if k in summary.columns and k != "corpus"]
    drafted = summary.loc[~summary["scheme"].isin(list(BASELINES))].copy()
    drafted["gain_j"] = drafted["e_plain_j"] - drafted["e_spec_j"]
    saves = drafted.loc[drafted["gain_j"] > 0, [*keys, "corpus", "gain_j"]]
    costs = drafted.loc[drafted["gain_j"] < 0, [*keys, "corpus", "gain_j"]]
    both = saves.merge(costs, on=keys, suffixes=("_saves", "_costs"))
    cost = -both["gain_j_costs"]
    both["share_of_saving_corpus"] = cost / (both["gain_j_saves"] + cost)
    both = both.rename(columns={"corpus_saves": "saving_corpus", "corpus_costs": "costing_corpus"})
    both["gain_j_costs"] = np.abs(both["gain_j_costs"])
    return both.rename(columns={"gain_j_saves": "gain_j_per_token", "gain_j_costs": "cost_j_per_token"})
