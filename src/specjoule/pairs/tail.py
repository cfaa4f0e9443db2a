"""Beyond the mean interval: gaps between a user's tokens, their percentiles, and the longest stall.

A speculative server delivers several tokens at once and then nothing: four tokens every 40 ms and one every 10 ms have
the same mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

F64 = npt.NDArray[np.float64]


def gaps_of_chunks(t_ns: npt.ArrayLike, tokens: npt.ArrayLike) -> F64:
    """Return the gaps (ms) before each token but the first of one request: tokens of one chunk share its arrival."""
    stamps, counts = np.asarray(t_ns, dtype=np.int64), np.asarray(tokens, dtype=np.int64)
    each = np.repeat(stamps, counts)
    return np.asarray(np.diff(each) / 1e6, dtype=np.float64)


def percentiles(gaps_ms: npt.ArrayLike, q: tuple[float, ...] = (50, 95, 99)) -> dict[str, float]:
    """Return mean, the percentiles and the longest of gaps, ms."""
    values = np.asarray(gaps_ms, dtype=np.float64)
    out = {"mean_ms": float(values.mean())}
    out |= {f"p{p:g}_ms": float(np.percentile(values, p)) for p in q}
    return out | {"stall_max_ms": float(values.max())}


def gap_distribution(gaps: pd.DataFrame, cells: pd.DataFrame, edges_ms: F64) -> pd.DataFrame:
    """Pool the gap histograms of counted cells per configuration: share of gaps longer than each edge.

    Columns: model, gpu, drafter, scheme, verify_width, concurrency, corpus; `gap_ms` (lower edge), `share_longer`.
    """
    keys = ["cell_hash", "segment_id", "attempt", "launch", "role"]
    names = ["model", "gpu", "drafter", "scheme", "verify_width", "concurrency", "corpus", "meter"]
    work = gaps.merge(cells[[*keys, *names]], on=keys)
    total = work.groupby([*names, "bin"], dropna=False)["gaps"].sum().reset_index().sort_values([*names, "bin"])
    grouped = total.groupby(names, dropna=False)["gaps"]
    total["share_longer"] = 1.0 - grouped.cumsum() / grouped.transform("sum")
    total["gap_ms"] = edges_ms[total["bin"].to_numpy() + 1]
    total["share_longer"] = total["share_longer"].clip(lower=0.0)
    return total.drop(columns=["bin", "gaps"])


def distribution_percentiles(distribution: pd.DataFrame) -> pd.DataFrame:
    """Return p50, p95 and p99 (ms, to the width of a bin, 6 %) of pooled gaps per configuration."""
    keys = [c for c in distribution.columns if c not in ("gap_ms", "share_longer")]
    out = distribution[keys].drop_duplicates().reset_index(drop=True)
    for q in (50, 95, 99):
        reached = distribution.loc[distribution["share_longer"] <= 1.0 - q / 100.0]
        first = reached.groupby(keys, dropna=False)["gap_ms"].min().rename(f"gap_p{q}_ms").reset_index()
        out = out.merge(first, on=keys, how="left")
    return out
