"""What the present data say to a published value: one estimator a question, on the same frames as every other table.

Each takes the analysis and a published item and returns an `Answer`, or raises `Missing` with the reason why these data
have none. Conditions that an item does not name: corpus code, capture on, default clock and prompts, and the board of
the model's base grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specjoule.study.model import BASELINES
from specjoule.tables.context import Context

DENSE: tuple[str, ...] = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Gemma-4-12B", "Gemma-4-31B", "Qwen3.6-27B")
MOE: tuple[str, ...] = ("Gemma-4-26B-A4B", "Qwen3.6-35B-A3B", "GLM-4.7-Flash", "Qwen3-Coder-30B-A3B", "JoyAI-LLM-Flash")
MODELS: Mapping[str, tuple[str, ...]] = {"dense": DENSE, "moe": MOE, "all": (*DENSE, *MOE)}
"""The eleven targets of the main study, by the names that items use."""
TARGET_MS = 25.0
Item = Mapping[str, Any]
Points = Sequence[tuple[float, float]]
"""Measured values, each with its standard error (NaN: unknown)."""


class Missing(Exception):
    """These data cannot answer; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What is measured: values with their standard errors, or words with whether they bear the finding out."""

    points: Points = ()
    words: str | None = None
    holds: bool | None = None
    """Findings and signs only; None: the data cannot tell."""
    in_noise: float = float("nan")
    """Signs only: the least favourable effect in units of its standard error; positive as published."""


def answer(context: Context, item: Item) -> Answer:
    """Return what the data say to an item. Raises Missing."""
    if "unanswerable" in item:
        raise Missing(str(item["unanswerable"]))
    return _ANSWERS[str(item["answer"])](context, item)


# -- choosing rows


def _where(item: Item) -> dict[str, Any]:
    return dict(item.get("where") or {})


def base_board(context: Context, model: str) -> str:
    """Return the board of the model's base grid: H100 where it ran there, else the first there is. Raises Missing."""
    boards = sorted(context.cells.loc[context.cells["model"] == model, "gpu"].dropna().unique())
    if not boards:
        raise Missing(f"these data hold no {model}")
    return "H100" if "H100" in boards else str(boards[0])


_ORDER = ("model", "gpu", "corpus", "capture", "locked_mhz", "context_tokens", "scheme", "drafter", "concurrency")
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "capture": lambda v: "capture on" if v else "capture off",
    "locked_mhz": lambda v: "the default clock" if v is None else f"{v:g} MHz",
    "context_tokens": lambda v: "default prompts" if v is None else f"{v:g} tokens of context",
    "concurrency": lambda v: f"concurrency {v}",
}


def _conditions(context: Context, where: Mapping[str, Any]) -> dict[str, Any]:
    full: dict[str, Any] = {"corpus": "code", "capture": True, "locked_mhz": None, "context_tokens": None, **where}
    if "model" in full and "gpu" not in full:
        full["gpu"] = base_board(context, full["model"])
    return {k: full[k] for k in _ORDER if k in full}


def _mask(table: pd.DataFrame, key: str, value: Any) -> pd.Series[bool]:
    if value is None:
        return table[key].isna()
    return table[key].isin(list(value)) if isinstance(value, list | tuple) else table[key].eq(value)


def _pick(context: Context, table: pd.DataFrame, where: Mapping[str, Any], what: str) -> pd.DataFrame:
    """Return the rows that meet every condition. Raises Missing, naming the condition that no row meets."""
    wanted = _conditions(context, where)
    rows, cells = table, context.cells
    for key, value in wanted.items():
        if key not in table.columns:
            continue
        rows, cells = rows.loc[_mask(rows, key, value)], cells.loc[_mask(cells, key, value)]
        words = _WORDS.get(key, str)(value)
        if cells.empty:
            place = " ".join(_WORDS.get(k, str)(v) for k, v in wanted.items() if k in ("model", "gpu"))
            raise Missing(f"these data hold no {words}" + (f" for {place}" if key not in ("model", "gpu") else ""))
    if rows.empty:
        out = context.excluded
        for key, value in wanted.items():
            out = out.loc[_mask(out, key, value)] if key in out.columns else out
        why = ", ".join(sorted(set(",".join(out["reason"]).split(",")))) if len(out) else ""
        raise Missing(f"the cells that were run give no {what}" + (f": {why}" if why else ""))
    return rows


def _drafted(table: pd.DataFrame) -> pd.DataFrame:
    """Drafters of the base grids: no baselines, no sweep over proposals, no arms of the draft-share runs."""
    name = table["drafter"].astype("str")
    keep = ~table["scheme"].isin(list(BASELINES)) & ~name.str.startswith("ngram-proposals")
    return table.loc[keep & ~name.str.contains("+", regex=False)]


def _judged(context: Context, where: Mapping[str, Any]) -> pd.DataFrame:
    rows = _pick(context, context.judged, where, "pair")
    rows = _drafted(rows) if "drafter" not in where else rows
    if rows.empty:
        raise Missing("no drafter was paired there")
    return rows.sort_values("ratio_median", kind="stable")


def _saving_point(row: pd.Series[Any]) -> tuple[float, float]:
    return 1.0 - float(row["ratio_median"]), float(row["ratio_median"] * row["log_se"])


def _median_point(values: pd.Series[Any]) -> tuple[float, float]:
    known = pd.to_numeric(values).dropna()
    return float(known.median()), float(known.std() / np.sqrt(len(known))) if len(known) > 1 else float("nan")


def _each(models: Iterable[str], one: Callable[[str], Any]) -> dict[str, Any]:
    """Return one answer per model that has one. Raises Missing where none has."""
    found, reasons = {}, []
    for model in models:
        try:
            found[model] = one(model)
        except Missing as missing:
            reasons.append(str(missing))
    if not found:
        whole = f"these data hold none of the {len(reasons)} models there"
        raise Missing(reasons[0] if len(set(reasons)) == 1 else whole)
    return found


def _models(item: Item) -> tuple[str, ...]:
    where = _where(item)
    if "model" in where:
        return (where["model"],)
    named = where.get("models", "all")
    return MODELS[named] if isinstance(named, str) else tuple(named)


def _of(found: Mapping[str, Any], models: Sequence[str]) -> str:
    return f"{len(found)} of {len(models)} models"


def _whole(context: Context) -> None:
    """Counts over the grid need the grid. Raises Missing where a model of it is not there."""
    held = set(context.cells["model"]) & set(MODELS["all"])
    if len(held) < len(MODELS["all"]):
        raise Missing(f"the count belongs to the whole grid; these data hold {len(held)} of its 11 models")


# -- settings


def _balance(context: Context, item: Item) -> Answer:
    board = context.gpus.get(_where(item)["gpu"])
    if board is None or board.balance_flop_per_byte is None:
        raise Missing(f"no catalogue entry with a balance point for {_where(item)['gpu']}")
    return Answer([(float(board.balance_flop_per_byte), float("nan"))])


def _power_limit(context: Context, item: Item) -> Answer:
    rows = context.rows.loc[context.rows["gpu"] == _where(item)["gpu"], "power_limit_w"].dropna()
    if rows.empty:
        raise Missing(f"these data hold no {_where(item)['gpu']} that reports its limit")
    return Answer([(float(rows.median()), float("nan"))])


def _members(values: Iterable[Any], item: Item) -> Answer:
    found = sorted(set(values))
    wanted = [str(m) for m in item["members"]]
    shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in found]
    return Answer(words=", ".join(shown), holds=set(wanted) <= set(shown))


def _context_lengths(context: Context, item: Item) -> Answer:
    values = context.cells["context_tokens"].dropna().astype(float)
    if values.empty:
        raise Missing("no context length was set in these data")
    return _members(values, item)


def _locked_clocks(context: Context, item: Item) -> Answer:
    cells = context.cells
    for key, value in _where(item).items():
        cells = cells.loc[cells[key] == value]
    values = cells["locked_mhz"].dropna().astype(float)
    if values.empty:
        raise Missing("no clock was locked in these data")
    return _members(values, item)


def _boards(context: Context, item: Item) -> Answer:
    found = _members(context.cells["gpu"].dropna(), item)
    if not found.holds:
        raise Missing(f"these data were taken on {found.words}")
    return found


def _families(context: Context, item: Item) -> Answer:
    held = [context.models[m].family for m in context.cells["model"].unique() if m in context.models]
    found = _members(held, item)
    if not found.holds:
        raise Missing(f"these data hold the families {found.words or 'of no catalogue'}")
    return found


def _corpus_prompts(context: Context, item: Item) -> Answer:
    corpus = _where(item)["corpus"]
    if corpus not in set(context.cells["corpus"]) or context.nested is None:
        raise Missing(f"these data hold no {corpus}")
    mine = context.nested.requests.merge(context.cells[["cell_hash", "corpus"]].drop_duplicates(), on="cell_hash")
    return Answer([(float(mine.loc[mine["corpus"] == corpus, "prompt_id"].nunique()), float("nan"))])


def _both_captures(context: Context, item: Item) -> Answer:
    cells = context.cells
    for key, value in _where(item).items():
        cells = cells.loc[cells[key] == value]
    if cells.empty:
        raise Missing(f"these data hold no {_where(item)['model']} on {_where(item)['gpu']}")
    states = set(cells["capture"].dropna().astype(bool))
    return Answer(words="on and off" if len(states) > 1 else "one state only", holds=len(states) > 1)


def _capture_models(context: Context, item: Item) -> Answer:
    cells = context.cells.loc[context.cells["model"].isin(MOE)]
    states = cells.groupby("model")["capture"].nunique()
    if not (states > 1).any():
        raise Missing("these data hold no MoE model in both capture states")
    return Answer([(float((states > 1).sum()), float("nan"))])


# -- savings


def _saving(context: Context, item: Item) -> Answer:
    row = _judged(context, _where(item)).iloc[0]
    return Answer([_saving_point(row)], words=None if "drafter" in _where(item) else str(row["drafter"]))


def _best_by_model(context: Context, item: Item, **where: Any) -> dict[str, tuple[float, float]]:
    return _each(
        _models(item), lambda m: _saving_point(_judged(context, {**_where(item), **where, "model": m}).iloc[0])
    )


def _median_best(context: Context, item: Item) -> Answer:
    best = _best_by_model(context, item)
    if len(best) < 5:
        raise Missing(f"a median over models needs more than {_of(best, MODELS['all'])}")
    values, own = (np.array(side) for side in zip(*best.values(), strict=True))
    # Of the very models, only their own errors are noise; of some of them, the spread between models is too. The
    # standard error of a median of n normal values is 1.2533 times that of their mean.
    spread = np.sqrt(np.mean(own**2)) if len(best) == len(MODELS["all"]) else values.std(ddof=1)
    return Answer(
        [(float(np.median(values)), float(1.2533 * spread / np.sqrt(len(values))))], words=_of(best, MODELS["all"])
    )


def _best_range(context: Context, item: Item) -> Answer:
    best = _best_by_model(context, item)
    return Answer(list(best.values()), words=_of(best, MODELS["all"]))


def _winner(context: Context, item: Item) -> Answer:
    name = str(_judged(context, _where(item)).iloc[0]["drafter"])
    return Answer(words=name, holds=name == item["text"])


def _costs_less(context: Context, item: Item) -> Answer:
    parts, held = [], []
    where = _where(item)
    boards = sorted(context.judged.loc[context.judged["model"] == where["model"], "gpu"].unique())
    for name in item["one"]:
        steps: list[float] = []
        for board in boards or [base_board(context, where["model"])]:
            try:
                mine = {
                    d: _judged(context, {**where, "gpu": board, "drafter": d}).set_index("concurrency")["ratio_median"]
                    for d in (name, item["other"])
                }
            except Missing:
                continue
            lead = (mine[item["other"]] - mine[name]).dropna().sort_index()
            steps += lead.tolist()
            held.append(bool((lead > 0).all()))
            if item.get("growing") and len(lead) > 1:
                held.append(bool(lead.iloc[-1] > lead.iloc[0]))
        if steps:
            parts.append(f"{name} at {sum(s > 0 for s in steps)} of {len(steps)} points")
    if not held:
        raise Missing(f"these data hold no {' or '.join(item['one'])} beside {item['other']} there")
    return Answer(words="; ".join(parts), holds=all(held))


def _longer_on_documents(context: Context, item: Item) -> Answer:
    where = _where(item)
    s = context.judged
    s = s.loc[s["model"].isin(where["models"]) & s["drafter"].isin(where["drafters"]) & s["locked_mhz"].isna()]
    a = s.groupby("corpus")["a_spec"].median() if len(s) else pd.Series(dtype=float)
    if not {"code", "long_document"} <= set(a.index):
        raise Missing("these data hold no n-gram drafter of these models on both texts")
    return Answer(words=f"{a['long_document']:.2f} against {a['code']:.2f}", holds=bool(a["long_document"] > a["code"]))


def _plain_cells(context: Context, where: Mapping[str, Any]) -> pd.DataFrame:
    return _pick(context, context.counted, {**where, "drafter": "plain"}, "plain cell")


def _growth(minus: float) -> Callable[[Context, Item], Answer]:
    def estimate(context: Context, item: Item) -> Answer:
        def one(model: str) -> tuple[float, float]:
            (one_ms, one_se), (many_ms, many_se) = (
                _median_point(_plain_cells(context, {"model": model, "concurrency": n})["itl_mean_ms"]) for n in (1, 32)
            )
            factor = many_ms / one_ms
            return factor - minus, factor * float(np.hypot(one_se / one_ms, many_se / many_ms))

        found = _each(_models(item), one)
        return Answer(list(found.values()), words=_of(found, _models(item)))

    return estimate


def _plain(column: str) -> Callable[[Context, Item], Answer]:
    return lambda context, item: Answer([_median_point(_plain_cells(context, _where(item))[column])])


def _spec_j(context: Context, item: Item) -> Answer:
    best = str(_judged(context, _where(item)).iloc[0]["drafter"])
    rows = _pick(context, context.pairs, {**_where(item), "drafter": best}, "pair")
    return Answer([_median_point(rows["e_spec_j"])], words=best)


def _saving_of_medians(context: Context, item: Item) -> Answer:
    row = _judged(context, _where(item)).iloc[0]
    return Answer([(1.0 - float(row["e_spec_j"] / row["e_plain_j"]), float(row["ratio_median"] * row["log_se"]))])


def _signs(context: Context, item: Item) -> Answer:
    rows = _judged(context, _where(item)).sort_values("concurrency")
    shown, effects, wrong, right = [], [], 0, 0
    z = np.log(rows["ratio_mean"].to_numpy(dtype=float)) / rows["log_se"].to_numpy(dtype=float)
    for n, verdict, effect in zip(rows["concurrency"].tolist(), rows["verdict"].tolist(), z.tolist(), strict=True):
        shown.append(f"{n}: {verdict}")
        saves = n <= item.get("saves_up_to", 0)
        if not saves and n < item.get("costs_from", float("inf")):
            continue
        effects.append(-effect if saves else effect)
        right += verdict == ("saves" if saves else "costs")
        wrong += verdict == ("costs" if saves else "saves")
    if not effects:
        raise Missing("these data hold none of the concurrencies named")
    return Answer(words="; ".join(shown), holds=False if wrong else True if right == len(effects) else None,
                  in_noise=min(effects))  # fmt: skip


def _crossing(context: Context, item: Item) -> Answer:
    from specjoule.pairs.intensity import intensity_points

    where = _where(item)
    points = intensity_points(context.counted, context.models, context.gpus)
    if points.empty:
        raise Missing("these data hold no dense model and board with known sizes and balance")
    boards = [where["gpu"]] if "gpu" in where else sorted(points.loc[points["model"] == where["model"], "gpu"].unique())
    over, measured, crossing = [], [], []
    for board in boards or [base_board(context, where["model"])]:
        mine = _pick(context, points, {**where, "gpu": board}, "intensity").sort_values("concurrency")
        above = mine["intensity_flop_per_byte"] >= mine["balance_flop_per_byte"]
        over += mine.loc[above, "concurrency"].astype(int).tolist()
        measured += mine["concurrency"].astype(int).tolist()
        crossing.append(float(mine["crossing_batch"].median()))
    words = f"from {min(over)} on" if over else f"not by {max(measured)}"
    words += "; balance at batch " + ", ".join("none" if not np.isfinite(n) else f"{n:.0f}" for n in crossing)
    if "near" in item:
        nearest = min(measured, key=lambda n: abs(np.log(n / crossing[0]))) if np.isfinite(crossing[0]) else None
        return Answer(words=words, holds=nearest == item["near"])
    last = item.get("below", item.get("at", item.get("by")))
    if last not in measured:
        raise Missing(f"these data hold no concurrency {last}")
    if "below" in item:
        return Answer(words=words, holds=not any(n <= last for n in over))
    return Answer(words=words, holds=last in over if "by" in item else bool(over) and min(over) == last)


# -- latency and selection


def _fastest(context: Context, item: Item) -> pd.Series[Any]:
    rows = _drafted(_pick(context, context.configurations, _where(item), "configuration"))
    if rows.empty:
        raise Missing("no drafter was counted there")
    return rows.sort_values("itl_mean_ms", kind="stable").iloc[0]


def _fastest_itl(context: Context, item: Item) -> Answer:
    row = _fastest(context, item)
    cells = _pick(context, context.counted, {**_where(item), "drafter": row["drafter"]}, "cell")
    return Answer([_median_point(cells["itl_mean_ms"])], words=str(row["drafter"]))


def _fastest_drafter(context: Context, item: Item) -> Answer:
    name = str(_fastest(context, item)["drafter"])
    return Answer(words=name, holds=name == item["text"])


def _targets(context: Context) -> pd.DataFrame:
    from specjoule.pairs.latency import TargetRule, least_energy

    table = context.configurations
    if table.empty:
        raise Missing("these data hold no configuration that counts")
    table = table.loc[table["capture"].eq(True) & table["locked_mhz"].isna() & table["context_tokens"].isna()]
    table = table.loc[(table["corpus"] == "code") & ~table["drafter"].astype("str").str.startswith("ngram-proposals")]
    table = table.loc[table["model"].isin(MODELS["all"])]
    if table.empty:
        raise Missing("these data hold none of the models on code with capture on")
    base = table["model"].map({m: base_board(context, m) for m in table["model"].unique()})
    table = table.loc[table["gpu"] == base]
    return least_energy(context.counted, table, TargetRule(TARGET_MS, "mean", context.analysis.tightening))


def _infeasible(context: Context) -> tuple[list[str], list[str]]:
    table = _targets(context)
    plain = table["plain_setting"].astype("str").str.startswith("infeasible")
    return sorted(table.loc[~plain, "model"]), sorted(table.loc[plain, "model"])


def _feasible_models(context: Context, item: Item) -> Answer:
    _whole(context)
    return Answer([(float(len(_infeasible(context)[0])), float("nan"))])


def _infeasible_models(context: Context, item: Item) -> Answer:
    _whole(context)
    names = ", ".join(_infeasible(context)[1]) or "none"
    return Answer(words=names, holds=names == item["text"])


def _target_saving(context: Context, item: Item) -> Answer:
    table = _targets(context).dropna(subset=["ratio_median"])
    if table.empty:
        raise Missing(f"no model has both sides within {TARGET_MS:g} ms")
    spread = (table["ratio_max"] - table["ratio_min"]) / 2.0 / np.sqrt(table["ratio_seeds"])
    points = list(zip((1.0 - table["ratio_median"]).tolist(), spread.tolist(), strict=True))
    return Answer(points, words=f"{len(table)} of 11 models")


def _equal(context: Context, item: Item) -> dict[str, float]:
    """Return per model the plain concurrency that spends as little as the cheapest drafter there (infinite: none)."""
    from specjoule.pairs.latency import equal_energy_batch

    table = equal_energy_batch(context.configurations)

    def one(model: str) -> float:
        rows = _drafted(_pick(context, table, {**_where(item), "model": model}, "configuration"))
        if rows.empty:
            raise Missing("no drafter was counted there")
        batch = rows.sort_values("spec_j", kind="stable").iloc[0]["plain_concurrency"]
        return float("inf") if pd.isna(batch) else float(batch)

    return _each(MODELS["all"], one)


def _equal_energy(context: Context, item: Item) -> Answer:
    found = _equal(context, item)
    return Answer([(v, float("nan")) for v in found.values()], words=_of(found, MODELS["all"]))


def _equal_at_least(context: Context, item: Item) -> Answer:
    found = _equal(context, item)
    enough = sum(v >= item["least"] for v in found.values())
    return Answer(words=f"{enough} of {len(found)} models", holds=enough == len(found))


def _equal_never(context: Context, item: Item) -> Answer:
    _whole(context)
    return Answer([(float(sum(np.isinf(v) for v in _equal(context, item).values())), float("nan"))])


# -- pairs of drafters


def _pairs(context: Context, where: Mapping[str, Any] | None = None) -> pd.DataFrame:
    from specjoule.pairs.scheme_pairs import scheme_pairs

    summary = context.summary
    if summary.empty:
        raise Missing("these data hold no pair")
    base = summary["model"].map({m: base_board(context, m) for m in summary["model"].unique()})
    keep = (summary["gpu"] == base) & summary["capture"].eq(True) & (summary["corpus"] == "code")
    summary = _drafted(summary.loc[keep & summary["locked_mhz"].isna() & summary["context_tokens"].isna()])
    for key, value in (where or {}).items():
        summary = summary.loc[summary[key] == value]
    table = scheme_pairs(summary, {n: d.serial_steps for n, d in context.drafters.items()})
    if table.empty:
        raise Missing("these data hold no two drafters at one place")
    return table


def _pair_count(which: Callable[[pd.DataFrame], float]) -> Callable[[Context, Item], Answer]:
    def estimate(context: Context, item: Item) -> Answer:
        _whole(context)
        return Answer([(which(_pairs(context)), float("nan"))])

    return estimate


def _pair_share(context: Context, item: Item) -> Answer:
    table = _pairs(context)
    if len(table) < 20:
        raise Missing(f"a share needs more than {len(table)} pairs")
    # Pairs share drafters and baselines: their number gives no standard error.
    return Answer([(float(table["agrees"].mean()), float("nan"))], words=f"{len(table)} pairs")


def _pair_serial(context: Context, item: Item) -> Answer:
    table = _pairs(context, _where(item))
    rest = table.loc[~table["agrees"] & table["drafter_longer"].astype("str").str.startswith("EAGLE3")]
    if not table["drafter_longer"].astype("str").str.startswith("EAGLE3").any():
        raise Missing("these data hold no place where EAGLE3 commits more than another drafter there")
    serial = rest["explained_by"].eq("more serial draft steps")
    words = ", ".join(f"loses to {d}" for d in rest.loc[serial, "drafter_shorter"]) or "it does not lose so"
    return Answer(words=words, holds=bool(serial.any()))


# -- sweeps


def _sweep(context: Context, where: Mapping[str, Any]) -> pd.DataFrame:
    table = context.judged
    mine = table.loc[table["drafter"].astype("str").str.startswith("ngram-proposals")] if len(table) else table
    if mine.empty:
        raise Missing("these data hold no sweep over n-gram proposals")
    for key in ("model", "concurrency"):
        if key in where:
            mine = mine.loc[_mask(mine, key, where[key])]
    if mine.empty:
        raise Missing("the sweep over n-gram proposals was not run there")
    return mine


def _sweep_size(column: str) -> Callable[[Context, Item], Answer]:
    return lambda context, item: Answer([(float(_sweep(context, {})[column].nunique()), float("nan"))])


def _sweep_proposals(context: Context, item: Item) -> Answer:
    k = _sweep(context, {})["draft_tokens"].astype(float)
    return Answer([(float(k.min()), float("nan")), (float(k.max()), float("nan"))])


def _ngram_places(context: Context, item: Item) -> list[tuple[str, pd.DataFrame]]:
    where = _where(item)
    mine = _sweep(context, {k: v for k, v in where.items() if k in ("model", "concurrency")})
    mine = mine.loc[mine["model"].isin(_models(item))]
    if mine.empty:
        raise Missing("the sweep over n-gram proposals was not run there")
    return [(f"{m} at {c}", part) for (m, c), part in mine.groupby(["model", "concurrency"])]


def _ngram_best(context: Context, item: Item) -> Answer:
    best = {
        place: int(part.sort_values("ratio_median").iloc[0]["draft_tokens"])
        for place, part in _ngram_places(context, item)
    }
    return Answer(words="; ".join(f"{p}: {k}" for p, k in best.items()),
                  holds=all(k == item["best"] for k in best.values()))  # fmt: skip


def _ngram_costs(context: Context, item: Item) -> Answer:
    shown, held = [], []
    for place, part in _ngram_places(context, item):
        costs = part["ratio_median"] > 1.0
        worst = int(part.sort_values("ratio_median").iloc[-1]["draft_tokens"])
        shown.append(f"{place}: {int(costs.sum())} of {len(part)} lengths, worst {worst}")
        held += [bool(costs.all()), worst == item.get("worst", worst)]
    return Answer(words="; ".join(shown), holds=all(held))


# -- drafting's share


def _shares(context: Context, item: Item) -> pd.DataFrame:
    from specjoule.pairs.draft_share import draft_shares

    table = draft_shares(context.counted, context.analysis.control_limit) if len(context.counted) else pd.DataFrame()
    if table.empty:
        raise Missing("these data hold no runs with the draft forward left out")
    mine = table.loc[table["model"].isin(_models(item))]
    schemes = _where(item).get("schemes")
    if schemes:
        known = context.cells.drop_duplicates("drafter").set_index("drafter")["scheme"]
        mine = mine.loc[mine["drafter"].map(known).isin(schemes)]
    if mine.empty:
        raise Missing("the runs with the draft forward left out hold none of these models and drafters")
    return mine


def _draft_share(context: Context, item: Item) -> Answer:
    mine = _shares(context, item).dropna(subset=["share"])
    if mine.empty:
        raise Missing("the control forbids a split: random tokens alone move the energy")
    row = mine.sort_values("share").iloc[-1]
    return Answer([(float(row["share"]), float("nan"))], words=f"{row['drafter']} at {row['concurrency']}")


def _control(context: Context, item: Item) -> Answer:
    values = _shares(context, item)["control_change"].dropna()
    if values.empty:
        raise Missing("these data hold no runs that verify random tokens")
    shown = sorted(values.tolist(), key=abs)
    shown = shown[-1:] if item["answer"] == "control_change_max" else shown
    return Answer([(v, float("nan")) for v in shown])


# -- tokens a round and language


def _committed(context: Context, item: Item) -> Answer:
    rows = _pick(context, context.pairs, _where(item), "pair")
    smallest = rows.loc[rows["concurrency"] == rows["concurrency"].min(), "a_spec"]
    return Answer([_median_point(smallest)], words=f"concurrency {rows['concurrency'].min()}")


def _committed_range(context: Context, item: Item) -> Answer:
    rows = _pick(context, context.pairs, _where(item), "pair")
    return Answer([_median_point(part["a_spec"]) for _, part in rows.groupby("concurrency")])


def _retentions(context: Context, item: Item) -> list[tuple[float, float]]:
    from specjoule.tables.compute import language

    table = language(context)
    if table.empty or "retention_all" not in table:
        raise Missing("these data do not hold the same news in both languages")
    where = _where(item)
    mine = table.loc[table["model"].isin(_models(item)) & (table["verify_width"] > 1)]
    if "drafters" in where:
        mine = mine.loc[mine["drafter"].isin(where["drafters"])]
    if "origins" in where:
        mine = mine.loc[mine["origin"].isin(where["origins"])]
    kept = mine["retention_kept"].fillna(mine["retention_all"])
    width = (mine["kept_high"] - mine["kept_low"]).fillna(mine["all_high"] - mine["all_low"])
    mine = mine.assign(_value=kept, _se=width / (2 * 1.96)).dropna(subset=["_value"])
    if mine.empty:
        raise Missing("these data hold none of these models and drafters in both languages")
    grouped = mine.groupby(["model", "drafter"])[["_value", "_se"]].median()
    return list(zip(grouped["_value"].tolist(), grouped["_se"].tolist(), strict=True))


def _retention(context: Context, item: Item) -> Answer:
    return Answer(_retentions(context, item))


def _retention_median(context: Context, item: Item) -> Answer:
    points = _retentions(context, item)
    value, se = _median_point(pd.Series([v for v, _ in points]))
    return Answer([(value, points[0][1] if len(points) == 1 else se)], words=f"{len(points)} models and drafters")


def _language_requests(context: Context, models: Sequence[str]) -> pd.DataFrame:
    from specjoule.pairs.language import with_quality

    nested = context.nested
    if nested is None or nested.requests.empty:
        raise Missing("the raw files with the answers are not at hand")
    work = with_quality(nested.requests, context.cells)
    work = work.loc[(work["corpus"] == "news_rm") & work["model"].isin(list(models))]
    if work.empty:
        raise Missing("these data hold no Romansh answers of these models")
    return work


def _kept_answers(context: Context, item: Item) -> Answer:
    work = _language_requests(context, _models(item))
    kept = work.loc[work["qualifies"]].groupby(["model", "drafter"], observed=True)["prompt_id"].nunique()
    return Answer([(float(v), float("nan")) for v in kept])


def _italian(context: Context, item: Item) -> Answer:
    work = _language_requests(context, _models(item)).drop_duplicates(["drafter", "prompt_id"])
    found = []
    for _, part in work.groupby("drafter", observed=True):
        share = float((part["answer_language"].astype("str") == "it").mean())
        found.append((share, float(np.sqrt(share * (1 - share) / len(part)))))
    return Answer(found)


def _natural_length(context: Context, item: Item) -> Answer:
    nested = context.nested
    if nested is None or nested.requests.empty:
        raise Missing("the raw files with the answers are not at hand")
    names = ["cell_hash", "segment_id", "attempt", "launch", "role"]
    cells = context.cells.loc[(context.cells["corpus"] == "code") & (context.cells["role"] == "cell")]
    work = nested.requests.merge(cells[[*names, "model", "max_new_tokens"]], on=names)
    work = work.drop_duplicates(["model", "prompt_id"])
    if work.empty:
        raise Missing("these data hold no answers to the code prompts")
    ended = work["first_eos_position"].notna()
    longest = int(work["max_new_tokens"].max())
    if ended.mean() >= 0.5:
        median = float(work["first_eos_position"].fillna(longest).median())
        return Answer(words=f"{median:.0f}", holds=median > item["above"])
    if longest <= item["above"]:
        raise Missing(f"answers are cut at {longest} tokens; {1 - ended.mean():.0%} had not ended by then")
    return Answer(words=f"above {longest}", holds=True)


# -- clocks


def _clock_rows(context: Context, item: Item) -> pd.DataFrame:
    from specjoule.pairs.sweeps import clock_sweep

    where = _where(item)
    table = clock_sweep(context.counted) if len(context.counted) else pd.DataFrame()
    if table.empty:
        raise Missing("no clock was locked in these data")
    names = [where["drafter"]] if "drafter" in where else where["drafters"]
    mine: pd.DataFrame = table.loc[
        (table["model"] == where["model"]) & (table["gpu"] == where["gpu"]) & (table["corpus"] == "code")
    ]
    mine = mine.loc[mine["drafter"].isin(names)]
    if "locked_mhz" in where:
        mine = mine.loc[mine["locked_mhz"] == where["locked_mhz"]]
    if "drafters" in where:
        mine = mine.loc[mine["concurrency"] >= 16]
    if mine.empty:
        raise Missing(f"no clock was locked for {', '.join(names)} on {where['model']} and {where['gpu']} there")
    return mine


def _clock(column: str) -> Callable[[Context, Item], Answer]:
    def estimate(context: Context, item: Item) -> Answer:
        rows = _clock_rows(context, item)
        se = (rows["energy_saving_max"] - rows["energy_saving_min"]) / 2.0 / np.sqrt(rows["n_seeds"])
        se = se if column == "energy_saving" else se * np.nan
        return Answer(list(zip(rows[column].tolist(), se.tolist(), strict=True)))

    return estimate


def _clock_nothing(context: Context, item: Item) -> Answer:
    rows = _clock_rows(context, item)
    words = f"{rows['energy_saving'].min():+.3f} to {rows['energy_saving'].max():+.3f}"
    return Answer(words=words, holds=bool((rows["energy_saving"].abs() <= 0.01).all()))


def _clock_both(context: Context, item: Item) -> Answer:
    rows = _clock_rows(context, item)
    good = (rows["energy_saving"] > 0) & (rows["throughput_loss"] > 0)
    return Answer(words=f"{int(good.sum())} of {len(good)} places", holds=bool(good.all()))


# -- capacity, other boundaries


def _outcome(context: Context, item: Item) -> Answer:
    mine = _pick(context, context.cells, _where(item), "cell")
    status = str(mine["status"].iloc[0])
    peak = mine["realized_batch_peak"].iloc[0]
    words = {"ok": "runs", "partial": f"runs {peak:g}"}.get(status, f"cannot start ({mine['reason'].iloc[0]})")
    limited = item["outcome"] == "limited" and status in ("partial", "infeasible")
    return Answer(words=words, holds=limited or status == item["outcome"])


def _realized(context: Context, item: Item) -> Answer:
    mine = _pick(context, context.cells, _where(item), "cell")["realized_batch_peak"].dropna()
    if mine.empty:
        raise Missing("it did not run there")
    return Answer([(float(mine.median()), float("nan"))])


def _total_factor(context: Context, item: Item) -> Answer:
    from specjoule.pairs.boundary import factors

    rows = _pick(context, factors(context.pairs), _where(item), "pair").dropna(subset=["gamma_total"])
    if rows.empty:
        raise Missing("no host energy was read beside the board")
    return Answer([(float(rows["gamma_total"].max()), float("nan"))])


def _throughput_gain(context: Context, item: Item) -> Answer:
    sides = []
    for name in (_where(item)["drafter"], item["over"]):
        rows = _pick(context, context.counted, {**_where(item), "drafter": name}, "cell")
        sides.append(rows.loc[rows["concurrency"].between(2, 32)].groupby("concurrency")["throughput_tok_s"].median())
    gains = (sides[0] / sides[1]).dropna() - 1.0
    return Answer([_median_point(gains)])


_ANSWERS: dict[str, Callable[[Context, Item], Answer]] = {
    "balance": _balance, "power_limit": _power_limit, "context_lengths": _context_lengths,
    "locked_clocks": _locked_clocks, "boards": _boards, "families": _families, "corpus_prompts": _corpus_prompts,
    "both_captures": _both_captures, "capture_models": _capture_models, "saving": _saving,
    "median_best_saving": _median_best, "best_saving_range": _best_range, "winner": _winner,
    "costs_less": _costs_less, "longer_on_documents": _longer_on_documents, "plain_growth": _growth(1.0),
    "plain_factor": _growth(0.0), "plain_j": _plain("j_per_token"), "plain_itl": _plain("itl_mean_ms"),
    "spec_j": _spec_j, "saving_of_medians": _saving_of_medians, "signs": _signs, "crossing": _crossing,
    "fastest_itl": _fastest_itl, "fastest_drafter": _fastest_drafter, "feasible_models": _feasible_models,
    "infeasible_models": _infeasible_models, "target_saving": _target_saving, "equal_energy": _equal_energy,
    "equal_energy_at_least": _equal_at_least, "equal_energy_never": _equal_never,
    "pairs_all": _pair_count(lambda t: float(len(t))), "pairs_agree": _pair_count(lambda t: float(t["agrees"].sum())),
    "pairs_rest": _pair_count(lambda t: float((~t["agrees"]).sum())),
    "pairs_wider": _pair_count(lambda t: float(t["explained_by"].eq("verifies more positions").sum())),
    "pairs_share": _pair_share, "pairs_serial": _pair_serial, "sweep_models": _sweep_size("model"),
    "sweep_points": _sweep_size("concurrency"), "sweep_proposals": _sweep_proposals, "ngram_best": _ngram_best,
    "ngram_costs": _ngram_costs, "draft_share": _draft_share, "control_change": _control,
    "control_change_max": _control, "committed": _committed, "committed_range": _committed_range,
    "retention": _retention, "retention_median": _retention_median, "kept_answers": _kept_answers,
    "drifted_to_italian": _italian, "natural_length": _natural_length, "clock_loss": _clock("throughput_loss"),
    "clock_saving": _clock("energy_saving"), "clock_default": _clock("clock_default_mhz"),
    "clock_nothing": _clock_nothing, "clock_both": _clock_both, "outcome": _outcome, "realized": _realized,
    "total_factor": _total_factor, "throughput_gain": _throughput_gain,
}  # fmt: skip
"""Estimators by the name that items give."""
