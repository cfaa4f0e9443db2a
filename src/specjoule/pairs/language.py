"""The same news in two languages: does a drafter keep its accepted length and its saving?

Acceptance is known per request and can be filtered to answers in the language asked for; energy belongs to the window
and is filtered only where *every* request of the window qualifies. The unfiltered numbers always stand beside.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.pairs.keys import side_by_side

F64 = npt.NDArray[np.float64]

RM, EN = "rm", "en"


def with_quality(requests: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Join requests to their cells' factors; `qualifies`: in the language asked for, no repetition."""
    names = ["model", "gpu", "drafter", "scheme", "verify_width", "concurrency", "corpus", "language", "seed",
             "replicate", "capture", "locked_mhz", "context_tokens", "status"]  # fmt: skip
    keys = ["cell_hash", "segment_id", "attempt", "launch", "role"]
    work = requests.merge(cells[[*keys, *names]], on=keys)
    work = work.loc[(work["role"] == "cell") & (work["status"] == "ok")]
    degenerate = work["degenerate"].fillna(0.0).astype("float64") > 0
    work["qualifies"] = (work["language_ok"].astype("float64") == 1.0) & ~degenerate
    work["decoded"] = work["committed_tokens"] - 1.0
    return work


def language_counts(work: pd.DataFrame) -> pd.DataFrame:
    """Count answers kept and dropped per model, drafter and language, and where the dropped ones drifted."""
    keys = ["model", "gpu", "drafter", "language"]
    mine = work.loc[work["corpus"].astype("str").str.startswith("news")]
    grouped = mine.groupby(keys, dropna=False, sort=True)
    out = grouped.agg(answers=("qualifies", "size"), kept=("qualifies", "sum"), repetitive=("degenerate", "sum"))
    drifted = mine.loc[~mine["qualifies"] & mine["answer_language"].notna()]
    drifted = drifted.loc[drifted["answer_language"].astype("str") != drifted["language"].astype("str")]
    counts = drifted.groupby([*keys, "answer_language"], dropna=False, observed=True).size().reset_index(name="n")
    text = counts["answer_language"].astype("str") + " " + counts["n"].astype("str")
    where = counts.assign(text=text).groupby(keys, dropna=False)["text"].agg(", ".join)
    out["dropped"] = out["answers"] - out["kept"]
    out["drifted_to"] = where
    return out.reset_index()


def retention(work: pd.DataFrame, origins: dict[str, str], *, draws: int = 400, seed: int = 1) -> pd.DataFrame:
    """Return Romansh over English of tokens committed per round, per model, drafter, width and batch.

    `retention_all` over every answer, `retention_kept` over those that qualify; each is (sum decoded / sum rounds) in
    Romansh over the same in English. Intervals (`*_low`, `*_high`, 95 %) resample documents, the clusters that twin
    prompts share, with both languages of each; where no document is known, prompts are the clusters. `origin` is the
    drafter's training origin.
    """
    mine = work.loc[work["corpus"].isin(["news_en", "news_rm"]) & (work["scheme"] != "plain")].copy()
    cluster = np.where(mine["document_id"] != 0, mine["document_id"], mine["prompt_id"])
    mine["_cluster"] = cluster
    keys = ["model", "gpu", "drafter", "verify_width", "concurrency"]
    rng = np.random.default_rng(seed)
    found = []
    for group, part in mine.groupby(keys, dropna=False, sort=True):
        row: dict[str, object] = dict(zip(keys, group if isinstance(group, tuple) else (group,), strict=True))
        row["origin"] = origins.get(str(row["drafter"]), "unknown")
        for name, which in (("all", part), ("kept", part.loc[part["qualifies"]])):
            value, low, high, n = _retention(which, rng, draws)
            row |= {f"retention_{name}": value, f"{name}_low": low, f"{name}_high": high, f"clusters_{name}": n}
        found.append(row)
    return pd.DataFrame(found, columns=None if found else [*keys, "origin", "retention_all", "retention_kept"])


def _retention(part: pd.DataFrame, rng: np.random.Generator, draws: int) -> tuple[float, float, float, int]:
    sums = part.groupby(["_cluster", "language"])[["decoded", "rounds"]].sum()
    if not {RM, EN} <= set(sums.index.get_level_values("language")):
        return (np.nan, np.nan, np.nan, 0)
    # A document that one language lacks (filtered, or without a twin) adds nothing to that side.
    sides = [sums.xs(language, level="language") for language in (RM, EN)]
    fewest = min(len(side) for side in sides)
    clusters = sides[0].index.union(sides[1].index)
    romansh, english = (side.reindex(clusters, fill_value=0.0).to_numpy(dtype=np.float64) for side in sides)
    point = _a(romansh.sum(axis=0)) / _a(english.sum(axis=0))
    if fewest < 4:
        return (float(point), np.nan, np.nan, fewest)
    # Both languages of a document are drawn together: what makes it easy to draft is much the same in either.
    drawn = rng.integers(0, len(clusters), (draws, len(clusters)))
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw without any document of one language says nothing
        ratios = _a(romansh[drawn].sum(axis=1)) / _a(english[drawn].sum(axis=1))
    low, high = np.nanpercentile(ratios, [2.5, 97.5])
    return (float(point), float(low), float(high), fewest)


def _a(sums: F64) -> F64:
    return np.asarray(sums[..., 0] / sums[..., 1])


def energy_retention(work: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return Romansh over English of J/token per model, drafter and batch: all windows, and fully qualifying windows.

    A cell's energy is filtered only where every request of it qualifies; elsewhere it is missing with the reason
    'not_all_qualify', never an estimate. Medians over seeds of the ratio on the same seed.
    """
    keys = ["cell_hash", "segment_id", "attempt", "launch", "role"]
    whole = work.groupby(keys)["qualifies"].all().rename("_all").reset_index()
    mine = cells.loc[cells["corpus"].isin(["news_en", "news_rm"]) & (cells["validity"] == "valid")].merge(
        whole, on=keys
    )
    place = ["model", "gpu", "drafter", "verify_width", "concurrency", "capture", "locked_mhz"]
    found = []
    for name, part in (("all", mine), ("kept", mine.loc[mine["_all"]])):
        wide = side_by_side(part, [*place, "seed", "replicate"], "corpus", "j_per_token", ("news_en", "news_rm"))
        ratio = wide.assign(ratio=wide["news_rm"] / wide["news_en"]).dropna(subset="ratio")
        table = ratio.groupby(place, dropna=False)["ratio"].agg(["median", "size"]).reset_index()
        found.append(table.rename(columns={"median": f"energy_retention_{name}", "size": f"seeds_{name}"}))
    out = found[0].merge(found[1], on=place, how="left")
    out["reason"] = np.where(out["energy_retention_kept"].isna(), "not_all_qualify", "")
    return out
