"""Points for figures: pairs and their medians in one long frame, with the panel each point belongs to."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specjoule.study.model import BASELINES

_PANEL = ("model", "gpu", "corpus", "context_tokens", "capture", "locked_mhz", "ignore_eos", "max_new_tokens", "engine")


def panel_names(frame: pd.DataFrame, keys: tuple[str, ...] = _PANEL) -> pd.Series[str]:
    """Name the panel of each row: model and board, and those other factors that vary within the frame."""
    known = [k for k in keys if k in frame.columns]
    varying = [k for k in known if k == "model" or frame[k].nunique(dropna=False) > 1]
    names = pd.Series("", index=frame.index, dtype="str")
    if frame.empty:
        return names
    for key in varying:
        text = _words(frame[key], key)
        names = names + " · " + text
    return names.str.removeprefix(" · ").str.replace(" ·  · ", " · ").str.rstrip(" ·")


def _words(values: pd.Series[Any], key: str) -> pd.Series[str]:
    missing = values.isna()
    if key == "capture":
        return values.map({True: "capture on", False: "capture off"}).astype("str")
    if key == "locked_mhz":
        return (values.astype("str").str.removesuffix(".0") + " MHz").where(~missing, "default clock")
    if key == "context_tokens":
        return (values.astype("str").str.removesuffix(".0") + " tokens of context").where(~missing, "own length")
    if key == "ignore_eos":
        return values.map({True: "EOS ignored", False: "EOS honoured"}).astype("str")
    if key == "max_new_tokens":
        return values.astype("str").str.removesuffix(".0") + " new tokens"
    return values.astype("str")


def saving_points(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return saving (1 - rho) per pair (`kind` 'seed') and its median per configuration (`kind` 'median')."""
    return _points(pairs, ["saving"])


def break_even_points(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return r_E (ratio of energy per step) and A (tokens per request and round) per pair and their medians.

    Speculation saves energy iff A > r_E, since rho = r_E / A at the same batch. Pairs without rounds are left out, and
    pairs without a decode window where other pairs of the configuration have one.
    """
    known = pairs.loc[pairs["r_e"].notna() & pairs["a_spec"].notna()]
    if known.empty:
        return _points(known, ["r_e", "a_spec"], carry=["r_e_window"])
    keys = [k for k in (*_PANEL, "drafter", "concurrency", "meter") if k in known.columns]
    decode = known["r_e_window"].eq("decode")
    has_decode = decode.groupby([known[k] for k in keys], dropna=False).transform("any")
    return _points(known.loc[decode | ~has_decode], ["r_e", "a_spec"], carry=["r_e_window"])


def _points(pairs: pd.DataFrame, values: list[str], carry: list[str] | None = None) -> pd.DataFrame:
    drafted = pairs.loc[~pairs["scheme"].isin(list(BASELINES))].copy()
    drafted["panel"] = panel_names(drafted)
    keys = ["panel", "drafter", "scheme", "verify_width", "concurrency"]
    seeds = drafted[[*keys, "seed", "meter", *values, *(carry or [])]].assign(kind="seed")
    grouped = drafted.groupby([*keys, "meter", *(carry or [])], dropna=False, sort=True)
    medians = grouped[values].median().reset_index().assign(kind="median")
    return pd.concat([seeds, medians], ignore_index=True).sort_values(["panel", *keys[1:], "kind"], kind="stable")
