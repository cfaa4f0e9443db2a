"""One function an item: analysis context in, the item's data frame out."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.views import break_even_points, panel_names, saving_points
from specjoule.tables.best_drafter import PLACE_KEYS, best_drafter
from specjoule.tables.cells_table import cells_table
from specjoule.tables.context import Context

NOTHING = pd.DataFrame()


def cells(context: Context) -> pd.DataFrame:
    """All cells."""
    return cells_table(context.every_cell)


def schemes(context: Context) -> pd.DataFrame:
    """Models x drafters."""
    from specjoule.tables.schemes import schemes_table

    return schemes_table(context.rows, context.models, context.drafters)


def best(context: Context) -> pd.DataFrame:
    """Best drafter per place with its interval and whether the next one ties."""
    from specjoule.statistics.equivalence import compare

    table = best_drafter(context.judged)
    place = [k for k in PLACE_KEYS if k in table.columns]
    return compare(context.pairs, table, place, context.judged, margin=context.analysis.tie_margin)


def verdicts(context: Context) -> pd.DataFrame:
    """Every configuration with interval and verdict."""
    return context.judged


def capture(context: Context) -> pd.DataFrame:
    """Capture off against on."""
    from specjoule.pairs.capture import capture_effect

    return capture_effect(context.pairs)


def intervals_per_batch(context: Context) -> pd.DataFrame:
    """Plain and fastest speculative interval."""
    from specjoule.pairs.latency import fastest_per_batch

    return fastest_per_batch(context.configurations)


def targets(context: Context) -> pd.DataFrame:
    """Least-energy configuration at each latency target, on mean, p95 and p99."""
    from specjoule.pairs.configurations import LATENCIES
    from specjoule.pairs.latency import TargetRule, least_energy

    wanted = sorted({*context.analysis.latency_targets_ms, context.analysis.headline_target_ms})
    if context.configurations.empty:
        return NOTHING
    found = [
        least_energy(context.counted, context.configurations, TargetRule(t, s, context.analysis.tightening))
        for s in LATENCIES
        for t in wanted
    ]
    return pd.concat(found, ignore_index=True)


def equal_energy(context: Context) -> pd.DataFrame:
    """Smallest plain batch that spends no more."""
    from specjoule.pairs.latency import equal_energy_batch

    return equal_energy_batch(context.configurations)


def corpora(context: Context) -> pd.DataFrame:
    """Configurations of places with more than one text."""
    table = context.judged
    if table.empty:
        return table
    keys = ["model", "gpu", "drafter", "concurrency", "capture", "locked_mhz", "context_tokens"]
    many = table.groupby(keys, dropna=False)["corpus"].transform("nunique") > 1
    return table.loc[many].sort_values([*keys, "corpus"], kind="stable").reset_index(drop=True)


def mixes(context: Context) -> pd.DataFrame:
    """Workload mixes."""
    from specjoule.pairs.mixes import mixes_table

    return mixes_table(context.pairs, context.analysis.mixes)


def balance_shares(context: Context) -> pd.DataFrame:
    """Break-even shares of two texts."""
    from specjoule.pairs.mixes import break_even_shares

    return break_even_shares(context.summary) if not context.summary.empty else NOTHING


def _language(context: Context) -> pd.DataFrame | None:
    from specjoule.pairs.language import with_quality

    nested = context.nested
    if nested is None or nested.requests.empty:
        return None
    return with_quality(nested.requests, context.cells.loc[context.cells["corpus"].isin(["news_en", "news_rm"])])


def language(context: Context) -> pd.DataFrame:
    """Retention of accepted length and energy, Romansh over English."""
    return context.once("language", lambda: _language_table(context))


def _language_table(context: Context) -> pd.DataFrame:
    from specjoule.pairs.language import energy_retention, retention

    work = _language(context)
    if work is None or work["corpus"].nunique() < 2:
        return NOTHING
    table = retention(work, {n: d.origin for n, d in context.drafters.items()})
    energy = energy_retention(work, context.cells)
    keys = ["model", "gpu", "drafter", "verify_width", "concurrency"]
    plain_off = energy.loc[energy["locked_mhz"].isna()].drop(columns=["locked_mhz"])
    return table.merge(plain_off, on=keys, how="outer").sort_values(keys, kind="stable").reset_index(drop=True)


def language_counts(context: Context) -> pd.DataFrame:
    """Answers kept and dropped, and where they drifted."""
    from specjoule.pairs.language import language_counts as count

    work = _language(context)
    return NOTHING if work is None or work.empty else count(work)


def scheme_pairs(context: Context) -> pd.DataFrame:
    """Counts of drafter pairs."""
    from specjoule.pairs.scheme_pairs import count_scheme_pairs
    from specjoule.pairs.scheme_pairs import scheme_pairs as pair_up

    if context.summary.empty:
        return NOTHING
    return count_scheme_pairs(pair_up(context.summary, {n: d.serial_steps for n, d in context.drafters.items()}))


def scheme_exceptions(context: Context) -> pd.DataFrame:
    """Drafter pairs in which the longer one does not spend less."""
    from specjoule.pairs.scheme_pairs import scheme_pairs as pair_up

    if context.summary.empty:
        return NOTHING
    table = pair_up(context.summary, {n: d.serial_steps for n, d in context.drafters.items()})
    return table.loc[~table["agrees"]].reset_index(drop=True)


def ngram_length(context: Context) -> pd.DataFrame:
    """The n-gram length sweep."""
    from specjoule.pairs.sweeps import ngram_length as sweep

    return sweep(context.judged) if not context.judged.empty else NOTHING


def clocks(context: Context) -> pd.DataFrame:
    """The clock sweep."""
    from specjoule.pairs.sweeps import clock_sweep

    return clock_sweep(context.counted)


def context_length(context: Context) -> pd.DataFrame:
    """The context sweep."""
    from specjoule.pairs.sweeps import context_sweep

    return context_sweep(context.judged) if not context.judged.empty else NOTHING


def draft_share(context: Context) -> pd.DataFrame:
    """Draft share of energy and its control."""
    from specjoule.pairs.draft_share import draft_shares

    return draft_shares(context.counted, context.analysis.control_limit) if len(context.counted) else NOTHING


def needed(context: Context) -> pd.DataFrame:
    """Break-even committed tokens."""
    from specjoule.pairs.needed import break_even_table

    return break_even_table(context.summary) if not context.summary.empty else NOTHING


def outcomes(context: Context) -> pd.DataFrame:
    """Exclusions by reason."""
    from specjoule.pairs.outcomes import outcomes as count

    return count(context.excluded, context.cells)


def drift(context: Context) -> pd.DataFrame:
    """Drift per block."""
    from specjoule.pairs.outcomes import block_drifts

    return block_drifts(context.rows)


def floor(context: Context) -> pd.DataFrame:
    """What plain relaunched differs from plain by, pooled per kind of board and meter, and what that lets one see."""
    from specjoule.statistics.floor import floor_table

    return floor_table(context.rows)


def boards(context: Context) -> pd.DataFrame:
    """Spread between boards."""
    from specjoule.pairs.outcomes import board_spread

    return board_spread(context.pairs, context.counted) if len(context.pairs) else NOTHING


def settings(context: Context) -> pd.DataFrame:
    """Settings that differ between the launches of a pair."""
    from specjoule.pairs.outcomes import settings_differences

    return settings_differences(context.records)


def instrumentation(context: Context) -> pd.DataFrame:
    """Change of the paired ratio by the study's own flags."""
    from specjoule.pairs.instrumentation import instrumentation_effect

    if context.every_cell.empty or len(context.every_cell) == len(context.cells):
        return NOTHING
    return instrumentation_effect(context.pairs, context.paired_minimal.pairs)


def agreement(context: Context) -> pd.DataFrame:
    """Output agreement and its control."""
    from specjoule.pairs.outcomes import agreement as agree

    nested = context.nested
    return NOTHING if nested is None or nested.requests.empty else agree(nested.requests, context.cells)


def factors(context: Context) -> pd.DataFrame:
    """Host and total energy, gamma factors."""
    from specjoule.pairs.boundary import factors as gammas

    return gammas(context.pairs)


def published(context: Context) -> pd.DataFrame:
    """Published against measured."""
    from specjoule.tables.published import published_table

    return published_table(context)


def error_budget(context: Context) -> pd.DataFrame:
    """Error budget per configuration."""
    from specjoule.statistics.budget import error_budget as budget

    extra = context.cells[["segment_id", "cell_hash", "attempt", "launch", "meter_lag_ms", "client_lag_ms"]]
    names = {"cell_hash": "hash_spec", "attempt": "attempt_spec", "launch": "launch_spec"}
    extra = extra.rename(columns=names).drop_duplicates(["segment_id", *names.values()])
    pairs = context.pairs.merge(extra, on=["segment_id", *names.values()], how="left")
    return budget(pairs, context.judged)


def winners_curse(context: Context) -> pd.DataFrame:
    """Selection repeated on held-out seeds and prompts."""
    from specjoule.statistics.selection import held_out_prompts, held_out_seeds

    if context.pairs.empty:
        return NOTHING
    return pd.concat([held_out_seeds(context.pairs), held_out_prompts(context.pairs, context.rows)], ignore_index=True)


def to_first_eos(context: Context) -> pd.DataFrame:
    """Sensitivity to the end of sequence."""
    from specjoule.pairs.sensitivity import up_to_first_eos

    nested = context.nested
    return NOTHING if nested is None or nested.to_eos.empty else up_to_first_eos(nested.to_eos, context.pairs)


def first_wave(context: Context) -> pd.DataFrame:
    """The headline from the first wave alone, beside all waves."""
    from specjoule.pairs.cells import sum_waves
    from specjoule.pairs.instrumentation import without_minimal
    from specjoule.pairs.pairing import make_pairs
    from specjoule.pairs.summary import GROUP_KEYS, summarise

    if context.summary.empty:
        return NOTHING
    first = without_minimal(context.rows.loc[(context.rows["wave"] == 0)]).assign(waves=1)
    alone = summarise(make_pairs(sum_waves(first)).pairs)
    keys = [k for k in GROUP_KEYS if k in alone.columns]
    both = context.summary[[*keys, "n_seeds", "saving_median", "ratio_half_range"]].merge(
        alone[[*keys, "saving_median", "ratio_half_range"]], on=keys, suffixes=("", "_first_wave")
    )
    both["saving_change"] = both["saving_median_first_wave"] - both["saving_median"]
    return both


# -- figures


def saving(context: Context) -> pd.DataFrame:
    """Points of saving against concurrency."""
    return _with_floor(saving_points(_headline(context.pairs)), context)


def break_even(context: Context) -> pd.DataFrame:
    """Points of energy per step against tokens per round."""
    return _with_floor(break_even_points(_headline(context.pairs)), context)


def _with_floor(points: pd.DataFrame, context: Context) -> pd.DataFrame:
    """Add `floor_log_ratio`: the |ln(ratio)| below which a median over so many seeds was not told from 0."""
    from specjoule.statistics.floor import smallest_seen

    if points.empty:
        return points
    seeds = points.loc[points["kind"] == "seed"].groupby(["panel", "drafter", "concurrency"]).size()
    return points.assign(floor_log_ratio=smallest_seen(context.floor, float(seeds.median())))


def _headline(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs of the batch sweep: capture on (or the only state there is), default clock, no context set."""
    if pairs.empty:
        return pairs
    keep = pairs["locked_mhz"].isna() & pairs["context_tokens"].isna()
    keep &= ~pairs["drafter"].astype("str").str.contains("+", regex=False)
    keep &= ~pairs["drafter"].astype("str").str.startswith("ngram-proposals")
    if pairs["capture"].any():
        keep &= pairs["capture"].eq(True)
    chosen = pairs.loc[keep]
    if chosen["corpus"].nunique() > 2 and chosen["corpus"].eq("code").any():
        chosen = chosen.loc[chosen["corpus"].eq("code")]
    return chosen


def intensity(context: Context) -> pd.DataFrame:
    """Intensity and balance beside the saving, per board."""
    from specjoule.pairs.intensity import intensity_points

    points = intensity_points(context.counted, context.models, context.gpus)
    if points.empty:
        return NOTHING
    keys = ["model", "gpu", "drafter", "concurrency", "corpus", "context_tokens", "capture", "locked_mhz"]
    out = points.merge(context.summary[[*keys, "saving_median", "ratio_half_range"]], on=keys, how="left")
    out = _headline(out)
    out = out.loc[out["scheme"] != "plain-matched"]  # steps like plain's: it would only hide them
    boards = out.groupby("model")["gpu"].nunique()
    both = [m for m, n in boards.items() if n > 1]
    return out.loc[out["model"].isin(both)] if both else out.loc[out["model"] == out["model"].iloc[0]]


def roofline(context: Context) -> pd.DataFrame:
    """Achieved against attainable, per board."""
    from specjoule.pairs.intensity import intensity_points

    points = intensity_points(context.counted, context.models, context.gpus)
    if points.empty:
        return NOTHING
    points = _headline(points)
    points = points.loc[points["scheme"] != "plain-matched"]
    peaks = {g: v.peak_flop_s for g, v in context.gpus.items()}
    bandwidths = {g: v.bandwidth_byte_s for g, v in context.gpus.items()}
    return points.assign(
        peak_flop_s=points["gpu"].map(peaks).astype("float64"),
        bandwidth_byte_s=points["gpu"].map(bandwidths).astype("float64"),
    )


def survival(context: Context) -> pd.DataFrame:
    """Survival curves."""
    return context.once("survival", lambda: _survival_table(context))


def _survival_table(context: Context) -> pd.DataFrame:
    from specjoule.pairs.survival import survival_curves

    nested = context.nested
    if nested is None or nested.acceptance.empty:
        return NOTHING
    table = survival_curves(nested.acceptance, context.counted)
    gpu = table.groupby("model")["gpu"].transform("min")
    table = table.loc[table["gpu"] == gpu]
    table = table.loc[~table["drafter"].astype("str").str.startswith("ngram-proposals")]
    if table["corpus"].nunique() > 2 and table["corpus"].eq("code").any():
        table = table.loc[table["corpus"].eq("code")]
    return table.assign(panel=panel_names(table, ("model", "corpus")))


def frontier(context: Context) -> pd.DataFrame:
    """Latency and energy of every configuration."""
    table = context.configurations
    if table.empty:
        return table
    table = _headline(table)
    table = table.assign(panel=panel_names(table, ("model", "gpu", "corpus")))
    return table.assign(target_ms=context.analysis.headline_target_ms)


def gaps(context: Context) -> pd.DataFrame:
    """Distribution of gaps at the largest batch that plain and a drafter share."""
    from specjoule.pairs.tail import distribution_percentiles, gap_distribution
    from specjoule.windows.nested import GAP_EDGES_MS

    nested = context.nested
    if nested is None or nested.gaps.empty:
        return NOTHING
    counted = _headline(context.counted)
    if counted.empty:
        return NOTHING
    batch = counted["concurrency"].max()
    counted = counted.loc[counted["concurrency"] == batch]
    table = gap_distribution(nested.gaps, counted, GAP_EDGES_MS)
    table = table.merge(distribution_percentiles(table), on=[c for c in table.columns if c not in _GAP], how="left")
    return table.assign(panel=panel_names(table, ("model", "gpu", "corpus")))


_GAP = ("gap_ms", "share_longer")


def corpus_points(context: Context) -> pd.DataFrame:
    """Accepted length and saving by text."""
    table = corpora(context)
    if table.empty:
        return table
    table = table.loc[table["locked_mhz"].isna() & table["context_tokens"].isna()]
    if table["capture"].any():
        table = table.loc[table["capture"].eq(True)]
    table = table.loc[~table["scheme"].isin(["plain-matched"])]
    return table.assign(panel=panel_names(table, ("model", "gpu")))


def language_points(context: Context) -> pd.DataFrame:
    """Retention for drawing."""
    table = language(context)
    if table.empty:
        return table
    drawn = table.loc[table["retention_all"].notna() & (table["verify_width"] > 1)]
    smallest = drawn.groupby(["model", "gpu", "drafter"])["concurrency"].transform("min")
    schemes_by_name = context.rows.drop_duplicates("drafter").set_index("drafter")["scheme"]
    drawn = drawn.assign(scheme=drawn["drafter"].map(schemes_by_name))
    return drawn.loc[drawn["concurrency"] == smallest].reset_index(drop=True)


def timeline(context: Context) -> pd.DataFrame:
    """Power and clock of one block, with its windows."""
    from specjoule.pairs.timeline import block_timeline

    if context.nested is None or context.counted.empty:
        return NOTHING
    return block_timeline(context.nested.timeline, context.rows)


def drift_points(context: Context) -> pd.DataFrame:
    """Drift of every block and the scatter of ratios about their mean."""
    from specjoule.statistics.verdicts import noise_points

    return noise_points(context.pairs) if len(context.pairs) else NOTHING
