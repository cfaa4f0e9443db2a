"""Two releases, two sites, two drivers: what changes, as a paired factor, with the settings that differ beside it.

Pairs are never made across the two sides. Each side's paired ratio rho is computed on its own board and hour; then the
*same* cell (model, drafter, concurrency, corpus, seed ...) on both sides gives one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import make_pairs

MATCH_KEYS: tuple[str, ...] = (
    "model", "gpu", "drafter", "concurrency", "corpus", "context_tokens", "capture", "locked_mhz", "max_new_tokens",
    "ignore_eos", "seed", "replicate",
)  # fmt: skip
"""What makes two cells the same cell, whatever release, driver or site they were measured with."""
SETTINGS: tuple[str, ...] = (
    "site", "engine", "engine_version", "driver", "gpu_name", "power_limit_w", "ecc", "weight_dtype", "kv_dtype",
    "model_revision", "drafter_revision", "chat_template", "protocol_version", "meter", "cpu_model", "governor",
    "pool_digest", "waves", "host", "gpu_uuid", "git_commit",
)  # fmt: skip
"""Settings reported where the two sides do not hold the same values."""
VALUES = ("energy_ratio", "e_spec_j", "e_plain_j", "speedup", "a_spec")


@dataclass(frozen=True)
class Comparison:
    """The comparison of side A with side B."""

    names: tuple[str, str]
    cells: pd.DataFrame
    """One row a matched cell: `MATCH_KEYS`, each of `VALUES` with suffixes _a and _b, and `*_change` = b / a."""
    summary: pd.DataFrame
    """Per model, GPU, drafter, concurrency and corpus: medians over seeds of the changes, with half-range and count."""
    settings: pd.DataFrame
    """setting, values on side A, values on side B; only those that differ."""
    unmatched: tuple[int, int]
    """Pairs of A and of B without a partner on the other side."""
    meters: tuple[str, ...]


def compare(a: pd.DataFrame, b: pd.DataFrame, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two sets of collected rows. Raises ConfigurationError where they have no cell in common."""
    pairs_a, pairs_b = (make_pairs(sum_waves(r), sum_waves(r, "decode")).pairs for r in (a, b))
    match = [k for k in MATCH_KEYS if k in pairs_a.columns and k in pairs_b.columns]
    # A cell measured at several sites or replicated on one side counts once there, by its median.
    left, right = (_one_each(p, match) for p in (pairs_a, pairs_b))
    cells = left.merge(right, on=match, suffixes=("_a", "_b"))
    if cells.empty:
        raise ConfigurationError(
            f"{names[0]} and {names[1]} have no paired cell in common; compare studies over the same models, drafters, "
            "concurrencies, corpora and seeds"
        )
    for name in VALUES:
        cells[f"{name}_change"] = cells[f"{name}_b"] / cells[f"{name}_a"]
    return Comparison(
        names=names,
        cells=cells,
        summary=_summary(cells),
        settings=settings_that_differ(a, b),
        unmatched=(len(left) - len(cells), len(right) - len(cells)),
        meters=tuple(sorted({*a["meter"].dropna().unique(), *b["meter"].dropna().unique()})),
    )


def split_by(rows: pd.DataFrame, factor: str) -> dict[str, pd.DataFrame]:
    """Return the rows by value of a column (`site`, `driver`, `engine_version`): the sides of a paired factor.

    Raises ConfigurationError unless the column has exactly two values.
    """
    if factor not in rows.columns:
        raise ConfigurationError(f"there is no column '{factor}'; try site, driver or engine_version")
    values = sorted(str(v) for v in rows[factor].dropna().unique())
    if len(values) != 2:
        raise ConfigurationError(
            f"'{factor}' has {len(values)} values here ({', '.join(values[:5])}); comparing takes two: "
            "select them first, or name two tables"
        )
    return {value: rows.loc[rows[factor].astype("str") == value] for value in values}


def settings_that_differ(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return setting, a, b for settings whose sets of values differ between the sides."""
    found = []
    for name in SETTINGS:
        if name not in a.columns or name not in b.columns:
            continue
        mine, theirs = (sorted({str(v) for v in side[name].dropna().unique()}) for side in (a, b))
        if mine != theirs:
            found.append({"setting": name, "a": _listed(mine), "b": _listed(theirs)})
    return pd.DataFrame(found, columns=["setting", "a", "b"])


def _listed(values: list[str]) -> str:
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "") if values else "-"


def _one_each(pairs: pd.DataFrame, match: list[str]) -> pd.DataFrame:
    grouped = pairs.groupby(match, dropna=False, sort=False, observed=True)
    return grouped[list(VALUES)].median().reset_index()


def _summary(cells: pd.DataFrame) -> pd.DataFrame:
    keys = ["model", "gpu", "drafter", "concurrency", "corpus"]
    grouped = cells.groupby(keys, dropna=False, sort=True, observed=True)
    out = grouped.agg(
        n=("energy_ratio_change", "size"),
        ratio_a=("energy_ratio_a", "median"),
        ratio_b=("energy_ratio_b", "median"),
        ratio_change=("energy_ratio_change", "median"),
        ratio_change_min=("energy_ratio_change", "min"),
        ratio_change_max=("energy_ratio_change", "max"),
        plain_change=("e_plain_j_change", "median"),
        spec_change=("e_spec_j_change", "median"),
        speedup_change=("speedup_change", "median"),
        committed_change=("a_spec_change", "median"),
    ).reset_index()
    out["ratio_change_half_range"] = (out["ratio_change_max"] - out["ratio_change_min"]) / 2
    # Every seed moved the same way: not a test, but what a reader looks for first.
    signs = np.sign(cells["energy_ratio_change"] - 1.0)
    one_way = signs.groupby([cells[k] for k in keys], dropna=False, sort=True, observed=True).nunique()
    out["one_way"] = (one_way.to_numpy() == 1) & (out["n"] > 1)
    return out
