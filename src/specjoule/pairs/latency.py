"""Which measured configuration spends least energy per token under a latency target, plain and speculative apart.

Energy and latency come from the same cells; nothing is interpolated to a batch that was not run; where no measured
configuration meets the target the answer is 'infeasible', and there is no ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from specjoule.pairs.configurations import BLOCK, LATENCIES, PLACE, SETTING, setting_words
from specjoule.study.model import PLAIN

INFEASIBLE = "infeasible on the measured grid"


@dataclass(frozen=True)
class TargetRule:
    """A latency target and how it is tightened to see whether the answer hangs by a thread."""

    target_ms: float
    statistic: str = "mean"
    """'mean', 'p95' or 'p99' of the interval between tokens."""
    tightening: float = 0.92
    """The tightened target is this share of the target (23 ms against 25)."""


def fastest_per_batch(table: pd.DataFrame) -> pd.DataFrame:
    """Return per place and concurrency plain's interval (ms) and the fastest speculative one with its drafter.

    The fastest is not the cheapest: its saving is not shown here. `table` is the output of `configurations`.
    """
    place = [k for k in (*PLACE, "capture", "locked_mhz", "concurrency") if k in table.columns]
    plain = table.loc[table["scheme"] == PLAIN, [*place, "itl_mean_ms"]]
    spec = table.loc[~table["scheme"].isin(["plain", "plain-matched"])].sort_values("itl_mean_ms", kind="stable")
    fast = spec.drop_duplicates(place)[[*place, "drafter", "itl_mean_ms"]]
    out = plain.rename(columns={"itl_mean_ms": "itl_plain_ms"}).merge(
        fast.rename(columns={"itl_mean_ms": "itl_fastest_ms", "drafter": "fastest_drafter"}), on=place, how="outer"
    )
    out["interval_ratio"] = out["itl_fastest_ms"] / out["itl_plain_ms"]
    return out.sort_values(place, kind="stable").reset_index(drop=True)


def least_energy(counted: pd.DataFrame, table: pd.DataFrame, rule: TargetRule) -> pd.DataFrame:
    """Return per place the least-energy configuration that meets the target: one for plain, one for speculation.

    Columns: `target_ms`, `statistic`; for side in plain, spec: `{side}_setting` (words, or 'infeasible ...'),
    `{side}_j` (J/token), `{side}_itl_ms`, `{side}_seeds_over` (seeds whose own latency misses the target),
    `{side}_setting_tightened` and `{side}_changes` (winner differs at the tightened target), `{side}_fallback` (the
    least-energy setting with every seed under the tightened target); `ratio_median`: median over seeds of the two
    winners' J/token on the same seed, null where a side is infeasible; `saving`; `fastest_plain_ms`.
    """
    place = [k for k in PLACE if k in table.columns]
    latency = LATENCIES[rule.statistic]
    places = table[place].drop_duplicates().reset_index(drop=True)
    out = places.assign(target_ms=rule.target_ms, statistic=rule.statistic)
    words = table.assign(setting=setting_words(table), _row=np.arange(len(table)))
    winners: dict[str, pd.DataFrame] = {}
    for side in ("plain", "spec"):
        plain_like = words["scheme"].isin([PLAIN, "plain-matched"])
        mine = words.loc[words["scheme"] == PLAIN] if side == "plain" else words.loc[~plain_like]
        mine = mine.sort_values(["j_per_token", "verify_width", "concurrency"], kind="stable")
        tight = rule.target_ms * rule.tightening
        chosen = mine.loc[mine[latency] <= rule.target_ms].drop_duplicates(place)
        strict = mine.loc[mine[latency] <= tight].drop_duplicates(place)
        safe = mine.loc[mine[latency.replace("_ms", "_max_ms")] <= tight].drop_duplicates(place)
        over = _seeds_over(counted, chosen, latency, rule.target_ms, place)
        got = chosen[[*place, "_row", "setting", "j_per_token", latency, "n_seeds"]]
        got = got.rename(columns={
            "_row": f"{side}_row", "setting": f"{side}_setting", "j_per_token": f"{side}_j", latency: f"{side}_itl_ms",
            "n_seeds": f"{side}_seeds",
        }).merge(over.rename(columns={"over": f"{side}_seeds_over"}), on=place, how="left")  # fmt: skip
        out = out.merge(got, on=place, how="left")
        for name, source in (("setting_tightened", strict), ("fallback", safe)):
            named = source[[*place, "setting"]].rename(columns={"setting": f"{side}_{name}"})
            out = out.merge(named, on=place, how="left")
        out[f"{side}_changes"] = out[f"{side}_setting"].notna() & (
            out[f"{side}_setting"].fillna("") != out[f"{side}_setting_tightened"].fillna("")
        )
        out[f"{side}_setting"] = out[f"{side}_setting"].fillna(INFEASIBLE)
        winners[side] = chosen
    out = out.merge(_seed_ratios(counted, winners, place), on=place, how="left")
    out["saving"] = 1.0 - out["ratio_median"]
    fastest = words.loc[words["scheme"] == PLAIN].groupby(place, dropna=False)[latency].min()
    out = out.merge(fastest.rename("fastest_plain_ms").reset_index(), on=place, how="left")
    return out.drop(columns=["plain_row", "spec_row"])


def _cells_of(counted: pd.DataFrame, chosen: pd.DataFrame, place: list[str], *columns: str) -> pd.DataFrame:
    """Return these columns of the chosen settings' cells."""
    keys = [k for k in (*place, *SETTING) if k in counted.columns]
    return counted[[*keys, *columns]].merge(chosen[keys], on=keys)


def _seeds_over(
    counted: pd.DataFrame, chosen: pd.DataFrame, latency: str, target_ms: float, place: list[str]
) -> pd.DataFrame:
    mine = _cells_of(counted, chosen, place, latency)
    return mine.assign(over=mine[latency] > target_ms).groupby(place, dropna=False)["over"].sum().reset_index()


def _seed_ratios(counted: pd.DataFrame, winners: dict[str, pd.DataFrame], place: list[str]) -> pd.DataFrame:
    keys = [*place, *BLOCK]
    sides = [
        _cells_of(counted, winners[s], place, *BLOCK, "j_per_token").groupby(keys, dropna=False)["j_per_token"].mean()
        for s in ("spec", "plain")
    ]
    sides = [side.rename(f"e_{s}") for s, side in zip(("spec", "plain"), sides, strict=True)]
    both = sides[0].reset_index().merge(sides[1].reset_index(), on=keys)
    ratio = both.assign(ratio=both["e_spec"] / both["e_plain"]).groupby(place, dropna=False)["ratio"]
    out = ratio.agg(["median", "min", "max", "size"]).reset_index()
    return out.rename(columns={"median": "ratio_median", "min": "ratio_min", "max": "ratio_max", "size": "ratio_seeds"})


def equal_energy_batch(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each speculative configuration the smallest measured plain batch that spends no more per token.

    `plain_concurrency` is null and `plain_words` '> N' where no measured plain batch up to N does. Filling a larger
    batch waits for arrivals, which is not in these numbers.
    """
    place = [k for k in (*PLACE, "capture", "locked_mhz") if k in table.columns]
    plain = table.loc[table["scheme"] == PLAIN, [*place, "concurrency", "j_per_token", "itl_mean_ms"]]
    plain = plain.rename(columns={
        "concurrency": "plain_concurrency", "j_per_token": "plain_j", "itl_mean_ms": "plain_itl_ms",
    })  # fmt: skip
    largest = plain.groupby(place, dropna=False)["plain_concurrency"].max().rename("largest_plain").reset_index()
    spec = table.loc[~table["scheme"].isin([PLAIN, "plain-matched"])].reset_index(drop=True)
    spec = spec[[*place, "drafter", "scheme", "verify_width", "concurrency", "j_per_token", "itl_mean_ms"]]
    spec = spec.rename(columns={"j_per_token": "spec_j", "itl_mean_ms": "spec_itl_ms"}).assign(
        _row=np.arange(len(spec))
    )
    both = spec.merge(plain, on=place)
    enough = both.loc[both["plain_j"] <= both["spec_j"]].sort_values("plain_concurrency", kind="stable")
    first = enough.drop_duplicates("_row")[["_row", "plain_concurrency", "plain_j", "plain_itl_ms"]]
    out = spec.merge(first, on="_row", how="left").merge(largest, on=place, how="left").drop(columns="_row")
    smallest = out["plain_concurrency"].map(lambda v: "" if pd.isna(v) else f"{v:.0f}")
    beyond = out["largest_plain"].map(lambda v: "no plain cell" if pd.isna(v) else f"> {v:.0f}")
    out["plain_words"] = smallest.where(out["plain_concurrency"].notna(), beyond)
    return out
