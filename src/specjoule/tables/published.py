"""Published values beside what the present data say, with the difference in units of noise."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import yaml

from specjoule.tables.context import Context

COLUMNS: tuple[str, ...] = (
    "id", "quantity", "model", "gpu", "drafter", "concurrency", "published", "measured", "noise", "difference",
    "difference_in_noise", "agrees", "note",
)  # fmt: skip
Answer = tuple[float, float] | None
"""Measured value and its standard error (NaN: unknown), or None where the data cannot answer."""


def published_values() -> list[dict[str, Any]]:
    """Return the published values that ship with the package."""
    text = files("specjoule.tables").joinpath("published.yaml").read_text(encoding="utf-8")
    values: list[dict[str, Any]] = yaml.safe_load(text)["values"]
    return values


def published_table(context: Context) -> pd.DataFrame:
    """Return one row per published value that the present data can answer.

    `noise` is the standard error of the measured value joined in quadrature with the rounding of the published one
    (half-width over sqrt 3); `difference_in_noise` = (measured - published)/noise. Where the measured value has no
    standard error the difference stands alone, and `agrees` asks for the published rounding. Signs agree or not.
    """
    found = []
    for item in published_values():
        answer = _ANSWERS[str(item["quantity"])](context, item)
        if answer is None:
            continue
        measured, se = answer
        rounding = float(item.get("half_width", 0.0)) / np.sqrt(3.0)
        noise = float(np.hypot(np.nan_to_num(se), rounding))
        difference = measured - float(item["value"])
        sign = item["quantity"] == "sign_of_saving"
        unknown = sign or np.isnan(se)
        in_noise = float("nan") if unknown or noise <= 0 else difference / noise
        within = abs(difference) <= float(item.get("half_width", 0.0))
        agrees = within if unknown else abs(in_noise) <= 2.0
        found.append({
            **{k: item.get(k) for k in ("id", "quantity", "model", "gpu", "drafter", "concurrency", "note")},
            "published": float(item["value"]), "measured": measured, "noise": float("nan") if unknown else noise,
            "difference": difference, "difference_in_noise": in_noise, "agrees": agrees,
        })  # fmt: skip
    return pd.DataFrame(found, columns=list(COLUMNS))


def _selected(table: pd.DataFrame, item: dict[str, Any], *, capture: bool = True) -> pd.DataFrame:
    if table.empty:
        return table
    keep = table["capture"].eq(capture) & table["corpus"].eq("code")
    keep &= table["locked_mhz"].isna() & table["context_tokens"].isna()
    for key in ("model", "gpu", "drafter", "concurrency"):
        if item.get(key) is not None and key in table.columns:
            keep &= table[key].eq(item[key])
    return table.loc[keep]


def _speculative(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[~table["scheme"].isin(["plain", "plain-matched"])] if not table.empty else table


def _saving(context: Context, item: dict[str, Any]) -> Answer:
    return _best(_selected(context.judged, item))


def _best(table: pd.DataFrame) -> Answer:
    mine = _speculative(table)
    if mine.empty:
        return None
    row = mine.sort_values("ratio_median").iloc[0]
    return 1.0 - float(row["ratio_median"]), float(row["ratio_median"] * row["log_se"])


def _capture_off(context: Context, item: dict[str, Any]) -> Answer:
    return _best(_selected(context.judged, item, capture=False))


def _median_best(context: Context, item: dict[str, Any]) -> Answer:
    mine = _speculative(_selected(context.judged, item))
    if mine.empty or mine["model"].nunique() < 5:
        return None
    best = mine.groupby(["model", "gpu"])["saving_median"].max().groupby("model").max()
    return float(best.median()), float(1.2533 * best.std() / np.sqrt(len(best)))


def _plain_column(column: str) -> Callable[[Context, dict[str, Any]], Answer]:
    def answer(context: Context, item: dict[str, Any]) -> Answer:
        mine = _selected(context.counted, item)
        values = mine.loc[mine["scheme"] == "plain", column]
        return (float(values.median()), float(values.std() / np.sqrt(len(values)))) if len(values) else None

    return answer


def _fastest(context: Context, item: dict[str, Any]) -> Answer:
    mine = _speculative(_selected(context.configurations, item))
    return (float(mine["itl_mean_ms"].min()), float("nan")) if len(mine) else None


def _committed(context: Context, item: dict[str, Any]) -> Answer:
    mine = _selected(context.pairs, item)
    return (float(mine["a_spec"].median()), float(mine["a_spec"].std() / np.sqrt(len(mine)))) if len(mine) else None


def _sign(context: Context, item: dict[str, Any]) -> Answer:
    mine = _selected(context.judged, item)
    if mine.empty:
        return None
    return {"saves": 1.0, "costs": -1.0}.get(str(mine.iloc[0]["verdict"]), 0.0), float("nan")


def _scheme_pairs(context: Context, item: dict[str, Any]) -> Answer:
    from specjoule.pairs.scheme_pairs import scheme_pairs

    if context.summary.empty:
        return None
    pairs = scheme_pairs(context.summary)
    return (float(pairs["agrees"].mean()), float("nan")) if len(pairs) >= 20 else None


def _balance(context: Context, item: dict[str, Any]) -> Answer:
    gpu = context.gpus.get(str(item["gpu"]))
    if gpu is None or gpu.balance_flop_per_byte is None:
        return None
    return float(gpu.balance_flop_per_byte), float("nan")


_ANSWERS: dict[str, Callable[[Context, dict[str, Any]], Answer]] = {
    "saving": _saving,
    "best_saving": _saving,
    "best_saving_capture_off": _capture_off,
    "median_best_saving": _median_best,
    "plain_j_per_token": _plain_column("j_per_token"),
    "plain_itl_ms": _plain_column("itl_mean_ms"),
    "fastest_itl_ms": _fastest,
    "committed_per_round": _committed,
    "sign_of_saving": _sign,
    "scheme_pair_share": _scheme_pairs,
    "balance_flop_per_byte": _balance,
}
