"""Intervals for paired energy ratios: blocks are the replicates, log ratios the scale.

Centre: the geometric mean of the paired ratios over blocks (seed x replicate). Waves and prompts are nested in blocks
and enter through the block's ratio of sums; they are no replicates of their own. Two intervals stand side by side:

- *pooled*: mean of log ratios +- t(df) sqrt(s~^2 / n), the variance moderated towards what waves, launches and the
  other configurations let expect (see `variance`). Headline interval.
- *alone*: the same with the configuration's own variance and n - 1 degrees of freedom. Exact for normal log ratios,
  very wide at three seeds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS, summarise
from specjoule.statistics.variance import Expected, expected_variance, moderated, prompt_variance

F64 = npt.NDArray[np.float64]

MIN_BLOCKS = 3
MIN_DF = 4.0
"""Below this the variance is itself guesswork, and the output says that so few blocks cannot carry an interval."""

FAMILY: tuple[str, ...] = (
    "model", "gpu", "drafter", "corpus", "context_tokens", "capture", "locked_mhz", "ignore_eos", "max_new_tokens",
    "engine", "meter",
)  # fmt: skip
"""Configurations that differ in concurrency only: they draft the same text with the same drafter."""

INDEPENDENT: tuple[str, ...] = ("model", "gpu", "engine", "meter")
"""Groups whose blocks share nothing: different models or board types are measured in different blocks."""


def with_intervals(pairs: pd.DataFrame, *, level: float = 0.95, keys: tuple[str, ...] = GROUP_KEYS) -> pd.DataFrame:
    """Return `summarise(pairs)` with intervals.

    Added columns (dimensionless): `ratio_mean` (geometric mean), `log_sd` (own standard deviation of log ratios),
    `log_se` (moderated standard error), `df`; `ratio_low`, `ratio_high` (pooled interval at `level`), `alone_low`,
    `alone_high` (t interval of the configuration alone); `saving_low`, `saving_high` = 1 - ratio; `p_value` (two-sided,
    log ratio = 0, pooled) and `interval_note`: empty, or why the interval cannot be relied on.
    """
    from scipy import stats

    table = summarise(pairs, keys)
    if pairs.empty:
        return table
    present = [k for k in keys if k in pairs.columns]
    work = pairs.assign(_y=np.log(pairs["energy_ratio"].to_numpy(dtype=np.float64)))
    grouped = work.groupby(present, dropna=False, sort=True, observed=True)
    work["_config"] = grouped.ngroup()
    y = work.groupby("_config")["_y"].agg(["mean", "var", "size"])
    n, own = y["size"].to_numpy(dtype=np.float64), y["var"].to_numpy(dtype=np.float64)
    mean = y["mean"].to_numpy(dtype=np.float64)
    variance, df, expected = _moderate(work, own, n)
    table["ratio_mean"] = np.exp(mean)
    table["log_sd"] = np.sqrt(own)
    table["log_se"] = np.sqrt(variance / n)
    table["df"] = df
    table["var_prompts"], table["var_launch"] = expected.prompt_part, expected.launch_part
    with np.errstate(invalid="ignore", divide="ignore"):  # no scatter at all: p is 0
        reach = stats.t.ppf(0.5 + level / 2, np.maximum(df, 1e-9)) * table["log_se"].to_numpy()
        alone = stats.t.ppf(0.5 + level / 2, np.maximum(n - 1, 1e-9)) * np.sqrt(own / n)
        statistic = np.abs(mean) / table["log_se"].to_numpy()
        table["p_value"] = np.where((df > 0) & (n > 1), 2 * stats.t.sf(statistic, np.maximum(df, 1e-9)), np.nan)
    for name, whole in (("ratio", reach), ("alone", alone)):
        half = np.where((df > 0) & (n > 1), whole, np.nan)
        table[f"{name}_low"], table[f"{name}_high"] = np.exp(mean - half), np.exp(mean + half)
    table["saving_low"], table["saving_high"] = 1.0 - table["ratio_high"], 1.0 - table["ratio_low"]
    table["interval_note"] = _notes(n, df, table)
    return table


def _moderate(work: pd.DataFrame, own: F64, n: F64) -> tuple[F64, F64, Expected]:
    """Moderate each configuration's variance; returns variance, degrees of freedom and the expectation used."""
    size = len(own)
    config = work["_config"].to_numpy(dtype=np.int64)
    one = work.drop_duplicates("_config").sort_values("_config")
    kin = np.asarray(one.groupby([k for k in FAMILY if k in one.columns], dropna=False).ngroup(), dtype=np.int64)
    prompts = work["unique_prompts"].to_numpy(dtype=np.float64) if "unique_prompts" in work else np.ones(len(work))
    if "wave_var" in work:
        wave_var, wave_df = work["wave_var"].to_numpy(dtype=np.float64), work["wave_df"].to_numpy(dtype=np.float64)
        p, p_df = prompt_variance(config, wave_var, wave_df, prompts, kin)
    else:
        p, p_df = np.full(size, np.nan), np.zeros(size)
    block = [k for k in ("study", "site", "block_id") if k in work.columns]
    blocks = work.drop_duplicates(block)
    drift = np.log1p(blocks["block_drift"].to_numpy(dtype=np.float64)) if "block_drift" in blocks else np.empty(0)
    per_group = blocks.groupby([k for k in INDEPENDENT if k in blocks.columns], dropna=False).size()
    independent = float(np.maximum(per_group.to_numpy() - 1, 0).sum())
    expected = expected_variance(np.nan_to_num(own), n - 1.0, p, p_df, drift, independent)
    variance, df = moderated(own, n - 1.0, expected)
    return variance, df, expected


def _notes(n: F64, df: F64, table: pd.DataFrame) -> list[str]:
    notes = []
    boards = table["n_boards"].to_numpy() if "n_boards" in table.columns else np.full(len(n), 2)
    for blocks, freedom, board in zip(n, df, boards, strict=True):
        parts = []
        if blocks < 2:
            parts.append("one block: no interval")
        elif blocks < MIN_BLOCKS:
            parts.append(f"{int(blocks)} blocks cannot carry an interval alone; it rests on other configurations")
        elif freedom < MIN_DF:
            parts.append(f"{int(blocks)} blocks cannot carry a narrow interval: {freedom:.1f} degrees of freedom")
        if board == 1 and blocks > 1:
            parts.append("one board: board spread not included")
        notes.append("; ".join(parts))
    return notes
