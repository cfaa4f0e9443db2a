"""What to run: the measured configuration that spends least under a latency target for a mix of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.pairs.configurations import BLOCK, LATENCIES, SETTING, setting_words
from specjoule.pairs.mixes import check_mix
from specjoule.pairs.summary import GROUP_KEYS
from specjoule.tables.context import Context
from specjoule.tables.provenance import provenance_words


@dataclass(frozen=True)
class Advice:
    """A recommendation from measured configurations only, with what would change it."""

    model: str
    gpu: str
    target_ms: float
    statistic: str
    mix: dict[str, float]
    feasible: bool
    setting: str | None
    """What to run, in words; None where no measured configuration meets the target."""
    j_per_token: float | None
    latency_ms: float | None
    """Slowest text of the mix, median over seeds, ms."""
    saving_same_batch: float | None
    """1 - ratio to plain at the same concurrency, capture and clock, paired by seed."""
    saving_same_batch_low: float | None
    saving_same_batch_high: float | None
    best_plain: str | None
    """Least-energy plain configuration under the same target; None: plain is infeasible on the measured grid."""
    saving_best_plain: float | None
    saving_best_plain_low: float | None
    saving_best_plain_high: float | None
    interval_note: str | None
    """Why these intervals cannot be relied on alone; null where they can. Same method as the tables': pooled."""
    confidence: float
    next_best: str | None
    next_best_costs: float | None
    """How much more energy per token the next best feasible setting takes, relative."""
    margin_ms: float | None
    """Target minus the latency."""
    seeds_over: int
    """Seeds whose own latency misses the target."""
    seeds: int
    fallback: str | None
    """Least-energy setting whose every seed stays within the tightened target."""
    stale_when: tuple[str, ...]
    energy: str

    def as_dict(self) -> dict[str, Any]:
        """Return the advice as a JSON-ready mapping; what is not known is null."""
        return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in asdict(self).items()}

    def as_text(self) -> str:
        """Return the advice in sentences."""
        mix = ", ".join(f"{v:.0%} {k}" for k, v in self.mix.items())
        head = f"{self.model} on {self.gpu}, {self.statistic} interval at most {self.target_ms:g} ms, {mix} of tokens"
        if not self.feasible:
            return f"{head}: infeasible on the measured grid; no configuration meets it.\nEnergy: {self.energy}."
        level = f"{self.confidence:.0%}".replace("%", " %")
        same = _saving(self.saving_same_batch, self.saving_same_batch_low, self.saving_same_batch_high, level)
        best = _saving(self.saving_best_plain, self.saving_best_plain_low, self.saving_best_plain_high, level)
        lines = [f"{head}:", f"Run {self.setting}: {self.j_per_token:.4g} J/token at {self.latency_ms:.3g} ms."]
        if self.setting == self.best_plain:
            lines.append("That is plain decoding: no measured drafter spends less under this target.")
        else:
            lines.append(f"Against plain at the same setting: {same}.")
            if self.best_plain:
                lines.append(f"Against the best plain setting under the same target ({self.best_plain}): {best}.")
            else:
                lines.append("No plain setting meets the target on the measured grid.")
            if self.interval_note:
                lines.append(f"Intervals: {self.interval_note}.")
        lines.append(f"Margin to the target {self.margin_ms:.3g} ms; {self.seeds_over} of {self.seeds} seeds miss it.")
        if self.next_best and self.next_best_costs is not None:
            lines.append(f"Next best: {self.next_best}, {self.next_best_costs:+.1%} energy per token.")
        else:
            lines.append("No other measured setting meets the target.")
        safe = self.fallback or "no measured setting does"
        lines.append(f"If every seed must meet the target with room to spare: {safe}.")
        lines += ["Measure again when: " + "; ".join(self.stale_when) + ".", f"Energy: {self.energy}."]
        return "\n".join(lines)


def _saving(value: float | None, low: float | None, high: float | None, level: str) -> str:
    if value is None or np.isnan(value):
        return "not measured on the same seeds"
    known = low is not None and high is not None and not (np.isnan(low) or np.isnan(high))
    between = f" ({level}: {low:.1%} to {high:.1%})" if known else " (too few seeds for an interval)"
    return f"{value:.1%} saved{between}" if value >= 0 else f"costs {-value:.1%} more{between}"


def advise(
    context: Context, *, model: str, gpu: str, target_ms: float, mix: Mapping[str, float], percentile: int | None = None
) -> Advice:
    """Return the least-energy measured configuration for a mix under a target on the mean or p95/p99 interval.

    Energy of a setting = sum of output-token shares times J/token of each text, per seed, then the median; its latency
    is that of its slowest text. A setting counts only where every text of the mix was measured at it. Intervals are the
    tables' pooled ones. Raises ConfigurationError for a model, board, text or percentile that these data do not hold.
    """
    shares = check_mix("--mix", mix)
    statistic = "mean" if percentile is None else f"p{percentile}"
    if statistic not in LATENCIES:
        raise ConfigurationError(f"--percentile {percentile}: the windows hold 95 and 99")
    cells = _cells(context.counted, model, gpu, shares)
    per_seed = _per_seed(cells, shares, LATENCIES[statistic])
    keys = [k for k in SETTING if k in per_seed.columns]
    table = per_seed.groupby(keys, dropna=False).agg(
        j=("j", "median"), ms=("ms", "median"), slowest=("ms", "max"), seeds=("seed", "nunique"),
        over=("ms", lambda v: int((v > target_ms).sum())),
    ).reset_index()  # fmt: skip
    table["setting"] = setting_words(table)
    table = table.sort_values("j", kind="stable").reset_index(drop=True)
    feasible = table.loc[table["ms"] <= target_ms].reset_index(drop=True)
    shared: dict[str, Any] = {
        "model": model, "gpu": gpu, "target_ms": target_ms, "statistic": statistic, "mix": shares,
        "energy": provenance_words(cells["meter"].unique()), "stale_when": _stale(cells),
    }  # fmt: skip
    if feasible.empty:
        empty: dict[str, Any] = {name: None for name in Advice.__dataclass_fields__ if name not in shared}
        known = {"feasible": False, "seeds_over": 0, "seeds": 0, "confidence": context.analysis.confidence}
        return Advice(**{**shared, **empty, **known})
    best = feasible.iloc[0]
    plain = feasible.loc[feasible["scheme"] == "plain"].head(1)
    same = table.loc[(table["scheme"] == "plain") & _equal(table, best, ("concurrency", "capture", "locked_mhz"))].head(
        1
    )
    choice = _Choice(context, cells, shares, per_seed, best)
    against_same = choice.against(same.iloc[0] if len(same) else None)
    against_best = choice.against(plain.iloc[0] if len(plain) else None)
    others = feasible.iloc[1:2]
    safe = table.loc[table["slowest"] <= target_ms * context.analysis.tightening].head(1)
    return Advice(
        **shared, feasible=True, setting=str(best["setting"]), j_per_token=float(best["j"]),
        latency_ms=float(best["ms"]),
        saving_same_batch=against_same[0], saving_same_batch_low=against_same[1],
        saving_same_batch_high=against_same[2],
        best_plain=str(plain.iloc[0]["setting"]) if len(plain) else None, saving_best_plain=against_best[0],
        saving_best_plain_low=against_best[1], saving_best_plain_high=against_best[2],
        next_best=str(others.iloc[0]["setting"]) if len(others) else None,
        next_best_costs=float(others.iloc[0]["j"] / best["j"] - 1.0) if len(others) else None,
        margin_ms=target_ms - float(best["ms"]), seeds_over=int(best["over"]), seeds=int(best["seeds"]),
        fallback=str(safe.iloc[0]["setting"]) if len(safe) else None,
        interval_note=against_same[3] or against_best[3] or None, confidence=context.analysis.confidence,
    )  # fmt: skip


def _cells(counted: pd.DataFrame, model: str, gpu: str, shares: Mapping[str, float]) -> pd.DataFrame:
    cells = counted
    for key, value in (("model", model), ("gpu", gpu)):
        known = sorted(counted[key].dropna().unique())
        if value not in known:
            raise ConfigurationError(
                f"{key} {value!r} is not in these data; they hold {', '.join(known) or 'nothing valid'}"
            )
        cells = cells.loc[cells[key] == value]
    missing = sorted(set(shares) - set(cells["corpus"].unique()))
    if missing:
        held = ", ".join(sorted(cells["corpus"].unique()))
        raise ConfigurationError(
            f"--mix names {', '.join(missing)}, not measured for {model} on {gpu}; there is {held}"
        )
    cells = cells.loc[cells["corpus"].isin(list(shares)) & cells["context_tokens"].isna()]
    return cells.loc[cells["scheme"] != "plain-matched"]


def _per_seed(cells: pd.DataFrame, shares: Mapping[str, float], latency: str) -> pd.DataFrame:
    keys = [k for k in (*SETTING, *BLOCK) if k in cells.columns]
    work = cells.assign(j=cells["corpus"].map(dict(shares)).astype("float64") * cells["j_per_token"], ms=cells[latency])
    out = work.groupby(keys, dropna=False).agg(j=("j", "sum"), ms=("ms", "max"), texts=("corpus", "nunique"))
    return out.loc[out["texts"] == len(shares)].reset_index()


def _equal(table: pd.DataFrame, row: pd.Series[Any], keys: tuple[str, ...]) -> pd.Series[bool]:
    same = pd.Series(True, index=table.index)
    for key in keys:
        if key in table.columns:
            same &= table[key].isna() if pd.isna(row[key]) else table[key].eq(row[key])
    return same


@dataclass(frozen=True)
class _Choice:
    """The chosen setting and what it is compared with, block by block."""

    context: Context
    cells: pd.DataFrame
    shares: Mapping[str, float]
    per_seed: pd.DataFrame
    best: pd.Series[Any]

    def against(self, other: pd.Series[Any] | None) -> tuple[float, float, float, str]:
        """Return the median saving over blocks that have both settings, its pooled interval, and the interval's note.

        One text and plain at the same batch: the configuration's own row of the tables. Otherwise the comparison
        joins the study's pairs as one more configuration, so that its variance is moderated as every other.
        """
        from specjoule.statistics.intervals import with_intervals

        nothing = (float("nan"), float("nan"), float("nan"), "")
        if other is None or (self.best["scheme"] == "plain" and _same_setting(self.best, other)):
            return nothing
        pairs, text = self._pairs(other)
        if pairs.empty:
            return nothing
        own = self._own_row(other)
        if own is None:
            joined = pd.concat([self.context.pairs, pairs], ignore_index=True)
            table = with_intervals(joined, level=self.context.analysis.confidence)
            own = table.loc[table["corpus"] == text]
        row = own.iloc[0]
        return (
            float(row["saving_median"]), float(row["saving_low"]), float(row["saving_high"]), str(row["interval_note"]),
        )  # fmt: skip

    def _own_row(self, other: pd.Series[Any]) -> pd.DataFrame | None:
        """The tables' row of this very comparison, where there is one."""
        place = ("concurrency", "capture", "locked_mhz")
        if len(self.shares) > 1 or any(not _equal_value(self.best.get(k), other.get(k)) for k in place):
            return None
        table, keys = self.context.judged, tuple(k for k in SETTING if k in self.per_seed.columns)
        mine = table.loc[_equal(table, self.best, keys) & table["corpus"].isin(list(self.shares))]
        here = self.cells.iloc[0]
        mine = mine.loc[(mine["model"] == here["model"]) & (mine["gpu"] == here["gpu"]) & mine["context_tokens"].isna()]
        return mine if len(mine) == 1 else None

    def _pairs(self, other: pd.Series[Any]) -> tuple[pd.DataFrame, str]:
        """One row per block: the two settings as a pair of their own, named by its texts."""
        keys = [k for k in SETTING if k in self.per_seed.columns]
        sides = [self.per_seed.loc[_equal(self.per_seed, row, tuple(keys))] for row in (self.best, other)]
        both = sides[0].merge(sides[1][[*BLOCK, "j"]], on=list(BLOCK), suffixes=("", "_other"))
        mine = self.cells.loc[_equal(self.cells, self.best, tuple(keys))]
        text = f"{' + '.join(sorted(self.shares))} against {other['setting']}"
        scatter = self._scatter(mine)
        first = mine.drop_duplicates(list(BLOCK)).assign(corpus=text)
        shown = [k for k in (*GROUP_KEYS, *BLOCK, "study", "site", "block_id", "gpu_uuid", "block_drift") if k in first]
        out = first[shown].merge(both[[*BLOCK, "j", "j_other"]], on=list(BLOCK)).merge(scatter, on=list(BLOCK))
        out["energy_ratio"] = out["j"] / out["j_other"]
        for side, column in (("spec", "j"), ("plain", "j_other")):
            out[f"e_{side}_j"] = out[f"energy_{side}_j"] = out[column]
            out[f"tokens_{side}"] = out[f"duration_{side}_s"] = 1.0
        return out.drop(columns=["j", "j_other"]), text

    def _scatter(self, mine: pd.DataFrame) -> pd.DataFrame:
        """What the waves of the chosen setting's own pairs say of its scatter, texts weighted by their energy."""
        pairs = self.context.pairs
        keys = ["segment_id", "cell_hash", "attempt", "launch"]
        names = {"hash_spec": "cell_hash", "attempt_spec": "attempt", "launch_spec": "launch"}
        known = pairs.rename(columns=names)[[*keys, "wave_var", "wave_df"]]
        work = mine.drop(columns=["wave_var", "wave_df"], errors="ignore").merge(known, on=keys, how="left")
        work["_j"] = work["corpus"].map(dict(self.shares)).astype("float64") * work["j_per_token"]
        work["_share"] = work["_j"] / work.groupby(list(BLOCK))["_j"].transform("sum")
        work["wave_var"] = work["_share"] ** 2 * work["wave_var"]
        grouped = work.groupby(list(BLOCK))
        out = grouped[["unique_prompts", "wave_df"]].sum()
        out["wave_var"] = grouped["wave_var"].sum(min_count=len(self.shares))
        return out.reset_index()


def _equal_value(a: Any, b: Any) -> bool:
    return bool(pd.isna(a) and pd.isna(b)) or a == b


def _same_setting(one: pd.Series[Any], other: pd.Series[Any]) -> bool:
    return str(one["setting"]) == str(other["setting"])


def _stale(cells: pd.DataFrame) -> tuple[str, ...]:
    tokens = cells["prompt_tokens"] / cells["unique_prompts"]
    batches = ", ".join(str(int(c)) for c in sorted(cells["concurrency"].unique()))
    versions = ", ".join(sorted(cells["engine_version"].dropna().unique()))
    answers = ", ".join(f"{int(v)}" for v in sorted(cells["max_new_tokens"].unique()))
    return (
        f"prompts are outside {tokens.min():.0f} to {tokens.max():.0f} tokens or answers differ from {answers} tokens",
        f"the load is not one of the batches measured and captured ({batches})",
        f"the engine is no longer {cells['engine'].iloc[0]} {versions}, or the driver, clocks or power limit change",
    )
