"""Published against simulated: the signs and ranges of the main study beside what the simulated boards gave.

Plausibility, never evidence: the simulation's parameters were chosen before this table was first made and are not
changed because of it (docs/simulated-boards.md). Where a published finding went into a parameter the row says so, and
agreement there proves nothing.

Pure: cells (`pairs.cells.sum_waves` of generation windows) and pairs (`pairs.pairing.make_pairs`) in, one table out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specjoule.meters.base import F64

LABEL = "plausibility, not evidence: simulated boards against a published study"

COLUMNS: tuple[str, ...] = ("topic", "finding", "published", "simulated", "verdict", "input", "label")
"""`verdict`: agrees, near (same sign, value off by less than `NEAR`), differs, or not answered. `input`: what of the
published finding is a parameter of the simulation ('', 'direction' or 'value')."""

NEAR = 0.10
"""A saving that has the published sign and differs by less than this is called near."""
EXACT = 0.03
"""A saving within this of the published one agrees: the published ones are rounded and read from notes."""

DENSE: tuple[str, ...] = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Gemma-4-12B", "Gemma-4-31B", "Qwen3.6-27B")
MOE: tuple[str, ...] = ("Gemma-4-26B-A4B", "Qwen3.6-35B-A3B", "GLM-4.7-Flash", "Qwen3-Coder-30B-A3B", "JoyAI-LLM-Flash")
TARGET_MS = 25.0


@dataclass(frozen=True)
class _Data:
    """The two frames and the medians over seeds that most rows need."""

    cells: pd.DataFrame
    pairs: pd.DataFrame
    savings: pd.DataFrame
    """One row per configuration: `saving` (median over seeds), `a`, `itl`, `e`."""
    plain: pd.DataFrame
    """Plain configurations: `e`, `itl`, `throughput` (medians over seeds)."""

    def saving(
        self, model: str, gpu: str | None, drafter: str, n: int, corpus: str = "code", capture: bool = True
    ) -> float | None:
        """Return the median saving of one configuration at default clock and prompts, or None."""
        s = self.savings
        mask = (s["model"] == model) & (s["drafter"] == drafter) & (s["concurrency"] == n) & (s["corpus"] == corpus)
        mask &= (s["capture"] == capture) & s["locked_mhz"].isna() & s["context_tokens"].isna()
        if gpu is not None:
            mask &= s["gpu"] == gpu
        found = s.loc[mask, "saving"]
        return float(found.iloc[0]) if len(found) else None

    def default(self, corpus: str = "code", capture: bool = True) -> pd.DataFrame:
        """Return the configurations of a corpus at default clock and prompts."""
        s = self.savings
        mask = (s["corpus"] == corpus) & (s["capture"] == capture) & s["locked_mhz"].isna() & s["context_tokens"].isna()
        return s.loc[mask & ~s["drafter"].str.startswith(("plain", "ngram-proposals"))]


def published_against_simulated(cells: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per published finding that such a study can answer, with the simulated value and a verdict.

    Rows that the present data cannot answer are there too and say so. Columns: `COLUMNS`.
    """
    data = _prepared(cells, pairs)
    rows: list[dict[str, object]] = []
    for part in PARTS:
        rows.extend(part(data))
    out = pd.DataFrame(rows, columns=list(COLUMNS[:-1]))
    out["label"] = LABEL
    return out


def _prepared(cells: pd.DataFrame, pairs: pd.DataFrame) -> _Data:
    keys = [
        "model",
        "gpu",
        "drafter",
        "scheme",
        "verify_width",
        "concurrency",
        "corpus",
        "capture",
        "locked_mhz",
        "context_tokens",
    ]
    if pairs.empty:
        savings = pd.DataFrame(columns=[*keys, "saving", "a", "itl", "e"])
    else:
        savings = (
            pairs.groupby(keys, dropna=False, observed=True)
            .agg(
                saving=("saving", "median"),
                a=("a_spec", "median"),
                itl=("itl_spec_ms", "median"),
                e=("e_spec_j", "median"),
            )
            .reset_index()
        )
    own = cells.loc[(cells["scheme"] == "plain") & (cells["role"] == "cell") & (cells["status"] == "ok")]
    plain_keys = [k for k in keys if k not in ("drafter", "scheme", "verify_width")]
    plain = (
        own.groupby(plain_keys, dropna=False, observed=True)
        .agg(e=("j_per_token", "median"), itl=("itl_mean_ms", "median"), throughput=("throughput_tok_s", "median"))
        .reset_index()
    )
    return _Data(cells, pairs, savings, plain)


def _row(
    topic: str, finding: str, published: str, simulated: str | None, verdict: str, given: str = ""
) -> dict[str, object]:
    shown = "-" if simulated is None else simulated
    return {
        "topic": topic, "finding": finding, "published": published, "simulated": shown,
        "verdict": "not answered" if simulated is None else verdict, "input": given,
    }  # fmt: skip


def _value(topic: str, finding: str, published: float, simulated: float | None, given: str = "") -> dict[str, object]:
    """Compare two savings."""
    if simulated is None:
        return _row(topic, finding, f"{published:+.2f}", None, "", given)
    off = abs(simulated - published)
    near = "near" if off <= NEAR and np.sign(simulated) == np.sign(published) else "differs"
    return _row(topic, finding, f"{published:+.2f}", f"{simulated:+.2f}", "agrees" if off <= EXACT else near, given)


def _range(
    topic: str, finding: str, low: float, high: float, values: Iterable[float], unit: str = "", given: str = ""
) -> dict[str, object]:
    """Compare a published range with the simulated one: agrees if every value lies inside, near if some do."""
    found = [v for v in values if not np.isnan(v)]
    shown = f"{low:g} to {high:g}{unit}"
    if not found:
        return _row(topic, finding, shown, None, "", given)
    inside = [low - 1e-9 <= v <= high + 1e-9 for v in found]
    verdict = "agrees" if all(inside) else "near" if any(inside) else "differs"
    return _row(
        topic,
        finding,
        shown,
        f"{min(found):.2f} to {max(found):.2f}{unit} ({sum(inside)} of {len(found)} inside)",
        verdict,
        given,
    )


def _claim(
    topic: str, finding: str, published: str, holds: bool | None, simulated: str, given: str = ""
) -> dict[str, object]:
    if holds is None:
        return _row(topic, finding, published, None, "", given)
    return _row(topic, finding, published, simulated, "agrees" if holds else "differs", given)


def _numbers(column: pd.Series[Any]) -> F64:
    return column.to_numpy(dtype=np.float64)


def _best(data: _Data, model: str, n: int, gpu: str | None = None) -> tuple[str, float] | None:
    rows = data.default()
    rows = rows.loc[(rows["model"] == model) & (rows["concurrency"] == n)]
    if gpu is not None:
        rows = rows.loc[rows["gpu"] == gpu]
    if rows.empty:
        return None
    top = int(np.argmax(_numbers(rows["saving"])))
    return str(rows["drafter"].iloc[top]), float(_numbers(rows["saving"])[top])


def _base_gpu(data: _Data, model: str) -> str | None:
    """The board of the base grid: H100 where the model was run on it, else H200."""
    seen = set(data.plain.loc[data.plain["model"] == model, "gpu"])
    return "H100" if "H100" in seen else "H200" if "H200" in seen else None


def _headline(data: _Data) -> list[dict[str, object]]:
    out = []
    best = {m: b for m in (*DENSE, *MOE) if (b := _best(data, m, 1, _base_gpu(data, m))) is not None}
    median = float(np.median([s for _, s in best.values()])) if best else None
    out.append(_value("headline", f"median over {len(best)} models of the best single-stream saving", 0.54, median))
    at_64 = [b[1] for m in (*DENSE, *MOE) if (b := _best(data, m, 64, _base_gpu(data, m))) is not None]
    out.append(_range("headline", "best saving at concurrency 64, over models", 0.15, 0.52, at_64))
    for model, n, drafter, saving in (
        ("Gemma-4-12B", 1, "DFlash-16", 0.75), ("Gemma-4-12B", 64, "assistant-6", 0.25),
        ("Qwen3-Coder-30B-A3B", 1, None, 0.32), ("Qwen3-Coder-30B-A3B", 64, None, 0.51),
    ):  # fmt: skip
        top = _best(data, model, n, "H100")
        out.append(_value("best saving", f"{model}, concurrency {n}", saving, top[1] if top else None))
        if drafter is not None:
            out.append(
                _claim(
                    "best saving",
                    f"{model}, concurrency {n}: winning drafter",
                    drafter,
                    top[0] == drafter if top else None,
                    top[0] if top else "",
                )
            )
    return out


def _intervals(data: _Data) -> list[dict[str, object]]:
    def factors(models: Iterable[str]) -> list[float]:
        out = []
        for model in models:
            p = data.plain
            mask = (
                (p["model"] == model)
                & (p["gpu"] == _base_gpu(data, model))
                & (p["corpus"] == "code")
                & p["capture"].astype(bool)
            )
            rows = p.loc[mask & p["locked_mhz"].isna() & p["context_tokens"].isna()].set_index("concurrency")["itl"]
            if {1, 32} <= set(rows.index):
                out.append(float(rows[32] / rows[1]))
        return out

    return [
        _range(
            "plain intervals",
            "relative growth of a user's interval from 1 to 32, dense models",
            0.09,
            0.34,
            [f - 1 for f in factors(DENSE)],
        ),
        _range("plain intervals", "factor of a user's interval from 1 to 32, MoE models", 2.5, 4.0, factors(MOE)),
    ]


def _drafters(data: _Data) -> list[dict[str, object]]:
    out = []
    for model in ("Qwen3-4B", "Qwen3-8B"):
        for narrow in ("DSpark-7", "DFlash-7"):
            points = _compare(data, model, narrow, "DFlash-16", "code")
            growing = None if not points else all(b > 0 for b in points.values())
            shown = f"{sum(b > 0 for b in points.values())} of {len(points)} points"
            out.append(
                _claim("width", f"{model}: {narrow} costs less than DFlash-16 at every point", "yes", growing, shown)
            )
    points = _compare(data, "Gemma-4-12B", "assistant-6", "DFlash-16", "conversation")
    holds = None if not points else all(v > 0 for v in points.values())
    out.append(
        _claim(
            "width",
            "Gemma-4-12B, conversation: the assistant costs less than DFlash at every batch",
            "yes",
            holds,
            f"{sum(v > 0 for v in points.values())} of {len(points)} batches",
        )
    )
    a = data.savings.loc[
        data.savings["model"].str.startswith("Gemma-4")
        & data.savings["drafter"].isin(["ngram-4", "ngram-16"])
        & data.savings["locked_mhz"].isna()
    ]
    by = a.groupby("corpus", observed=True)["a"].median() if len(a) else pd.Series(dtype=float)
    both = {"code", "long_document"} <= set(by.index)
    out.append(
        _claim(
            "corpora", "Gemma 4: n-gram's committed length on long documents can exceed that on code", "yes",
            bool(by["long_document"] > by["code"]) if both else None,
            f"{by['long_document']:.2f} against {by['code']:.2f}" if both else "", "direction",
        )
    )  # fmt: skip
    return out


def _compare(data: _Data, model: str, one: str, other: str, corpus: str) -> Mapping[tuple[str, int], float]:
    """Return saving(one) - saving(other) at every board and batch where both ran."""
    rows = data.default(corpus)
    rows = rows.loc[(rows["model"] == model) & rows["drafter"].isin([one, other])]
    table = rows.pivot_table(index=["gpu", "concurrency"], columns="drafter", values="saving", observed=True)
    if one not in table or other not in table:
        return {}
    difference = (table[one] - table[other]).dropna().reset_index(name="difference")
    places = zip(difference["gpu"].astype(str).tolist(), difference["concurrency"].astype(int).tolist(), strict=True)
    return dict(zip(places, _numbers(difference["difference"]).tolist(), strict=True))


def _capture(data: _Data) -> list[dict[str, object]]:
    model, out = "Qwen3-Coder-30B-A3B", []
    for n, off, on in ((1, 0.71, 0.32), (64, 0.43, 0.46)):
        for capture, published in ((False, off), (True, on)):
            rows = data.default(capture=capture)
            rows = rows.loc[(rows["model"] == model) & (rows["concurrency"] == n) & (rows["gpu"] == "H100")]
            best = float(rows["saving"].max()) if len(rows) else None
            out.append(
                _value(
                    "capture",
                    f"{model}, concurrency {n}, capture {'on' if capture else 'off'}: best saving",
                    published,
                    best,
                )
            )
    p = data.plain.loc[
        (data.plain["model"] == model) & (data.plain["concurrency"] == 1) & (data.plain["corpus"] == "code")
    ]
    e = p.loc[p["capture"].astype(bool), "e"]
    shown = f"{float(e.iloc[0]):.2f}" if len(e) else None
    near = bool(len(e)) and abs(float(e.iloc[0]) / 1.60 - 1) < 0.1
    out.append(
        _row(
            "capture",
            f"{model}, single stream, capture on: plain J/token",
            "1.60",
            shown,
            "agrees" if near else "differs",
        )
    )
    return out


def _signs(data: _Data) -> list[dict[str, object]]:
    model, out = "Qwen3-4B", []
    claims: tuple[tuple[str, str, str, Callable[[int], float | None]], ...] = (
        ("H100", "DFlash-16", "saves up to 16, costs from 32", lambda n: 1.0 if n <= 16 else -1.0),
        ("H200", "DFlash-16", "costs from 16", lambda n: -1.0 if n >= 16 else None),
        ("H100", "DSpark-7", "saves up to 64", lambda n: 1.0),
        ("H200", "DSpark-7", "costs at 64", lambda n: -1.0 if n == 64 else None),
    )
    for gpu, drafter, words, sign in claims:
        checked, right, shown = 0, 0, []
        for n in (1, 2, 4, 8, 16, 32, 64):
            wanted, found = sign(n), data.saving(model, gpu, drafter, n)
            if found is None:
                continue
            shown.append(f"{n}:{found:+.2f}")
            if wanted is not None:
                checked += 1
                right += np.sign(found) == wanted
        text = f"{right} of {checked} signs ({' '.join(shown)})"
        out.append(_claim("signs", f"{model} on {gpu}, {drafter}", words, right == checked if checked else None, text))
    return out


def _latency(data: _Data) -> list[dict[str, object]]:
    model, out = "Gemma-4-31B", []
    p = data.plain.loc[
        (data.plain["model"] == model) & (data.plain["corpus"] == "code") & data.plain["locked_mhz"].isna()
    ]
    plain = p.set_index("concurrency")["itl"]
    rows = data.default()
    rows = rows.loc[rows["model"] == model]
    for n, slow, fast, drafter in (
        (1, 33.2, 7.8, "DFlash-16"),
        (32, 38.3, 19.0, "assistant-6"),
        (64, 56.6, 28.9, "assistant-6"),
    ):
        own = float(plain[n]) if n in plain.index else None
        verdict = (
            "agrees"
            if own is not None and abs(own / slow - 1) < 0.1
            else "near"
            if own is not None and abs(own / slow - 1) < 0.3
            else "differs"
        )
        out.append(
            _row(
                "latency",
                f"{model}, concurrency {n}: plain interval, ms",
                f"{slow}",
                f"{own:.1f}" if own else None,
                verdict,
            )
        )
        mine = rows.loc[rows["concurrency"] == n]
        shown: str | None = None
        if len(mine):
            top = int(np.argmin(_numbers(mine["itl"])))
            itl, winner = float(_numbers(mine["itl"])[top]), str(mine["drafter"].iloc[top])
            off, same = abs(itl / fast - 1), winner == drafter
            verdict = "agrees" if same and off < 0.1 else "near" if same or off < 0.3 else "differs"
            shown = f"{itl:.1f} ({winner})"
        out.append(
            _row(
                "latency",
                f"{model}, concurrency {n}: fastest speculative interval, ms",
                f"{fast} ({drafter})",
                shown,
                verdict,
            )
        )
    slow_models, savings = [], []
    for m in (*DENSE, *MOE):
        gpu = _base_gpu(data, m)
        p = data.plain.loc[(data.plain["model"] == m) & (data.plain["gpu"] == gpu) & (data.plain["corpus"] == "code")]
        p = p.loc[p["locked_mhz"].isna() & p["context_tokens"].isna() & p["capture"].astype(bool)]
        if p.empty:
            continue
        feasible = p.loc[p["itl"] <= TARGET_MS]
        if feasible.empty:
            slow_models.append(m)
            continue
        spec = data.default()
        spec = spec.loc[(spec["model"] == m) & (spec["gpu"] == gpu) & (spec["itl"] <= TARGET_MS)]
        if len(spec):
            savings.append(1 - float(spec["e"].min()) / float(feasible["e"].min()))
    known = bool(slow_models or savings)
    out.append(
        _claim(
            "latency",
            "models whose plain decoding misses 25 ms at every batch",
            "Gemma-4-31B",
            slow_models == ["Gemma-4-31B"] if known else None,
            ", ".join(slow_models) or "none",
        )
    )
    out.append(
        _range(
            "latency", "saving of the cheapest feasible speculative setting at 25 ms, over models", 0.18, 0.69, savings
        )
    )
    return out


def _equal_energy(data: _Data) -> list[dict[str, object]]:
    found, spec = [], data.default()
    for m in (*DENSE, *MOE):
        gpu = _base_gpu(data, m)
        top = spec.loc[(spec["model"] == m) & (spec["gpu"] == gpu) & (spec["concurrency"] == 1)]
        p = data.plain.loc[(data.plain["model"] == m) & (data.plain["gpu"] == gpu) & (data.plain["corpus"] == "code")]
        p = p.loc[p["locked_mhz"].isna() & p["context_tokens"].isna() & p["capture"].astype(bool)]
        if top.empty or p.empty:
            continue
        enough = p.loc[p["e"] <= float(top["e"].min()), "concurrency"]
        found.append(float(enough.min()) if len(enough) else float("inf"))
    return [
        _range("equal energy", "plain concurrency that reaches the best single-stream speculative energy", 2, 8, found)
    ]


def _scheme_pairs(data: _Data) -> list[dict[str, object]]:
    rows, longer_saves, wider, total = data.default(), 0, 0, 0
    for _, group in rows.groupby(["model", "gpu", "concurrency"], observed=True):
        columns = (_numbers(group[name]).tolist() for name in ("a", "saving", "verify_width"))
        for one, other in itertools.combinations(zip(*columns, strict=True), 2):
            (_, saving, width), (_, other_saving, other_width) = (one, other) if one[0] >= other[0] else (other, one)
            total += 1
            if saving >= other_saving:
                longer_saves += 1
            elif width > other_width:
                wider += 1
    if not total:
        return [
            _row(
                "scheme pairs", "share of pairs in which the longer committed length also saves more", "0.864", None, ""
            )
        ]
    share, rest = longer_saves / total, total - longer_saves
    verdict = "agrees" if abs(share - 0.864) < 0.05 else "near" if abs(share - 0.864) < 0.15 else "differs"
    return [
        _row(
            "scheme pairs",
            "share of pairs in which the longer committed length also saves more",
            "0.864 of 332",
            f"{share:.3f} of {total}",
            verdict,
        ),
        _row(
            "scheme pairs",
            "of the rest, the loser verifies more positions",
            "44 of 45",
            f"{wider} of {rest}",
            "agrees" if rest and wider / rest > 0.9 else "differs",
        ),
    ]


def _ngram(data: _Data) -> list[dict[str, object]]:
    s, out = data.savings, []
    sweep = s.loc[s["drafter"].str.startswith("ngram-proposals-")].copy()
    if sweep.empty:
        return [_row("n-gram length", "sweep over proposals", "see the study", None, "")]
    sweep["proposals"] = sweep["drafter"].str.rsplit("-", n=1).str[1].astype(int)

    def best(model: str, n: int) -> tuple[int, bool] | None:
        rows = sweep.loc[(sweep["model"] == model) & (sweep["concurrency"] == n)]
        if rows.empty:
            return None
        saving = _numbers(rows["saving"])
        return int(rows["proposals"].iloc[int(np.argmax(saving))]), bool((saving < 0).all())

    single = best("Gemma-4-31B", 1)
    out.append(
        _claim(
            "n-gram length",
            "Gemma-4-31B, single stream: longer saves more",
            "32 is best",
            single[0] == 32 if single else None,
            f"{single[0]} is best" if single else "",
        )
    )
    for n in (4, 16):
        top = best("Gemma-4-31B", n)
        out.append(
            _claim(
                "n-gram length",
                f"Gemma-4-31B, concurrency {n}: four proposals are best",
                "4",
                top[0] == 4 if top else None,
                str(top[0]) if top else "",
            )
        )
    top = best("Gemma-4-31B", 64)
    out.append(
        _claim(
            "n-gram length",
            "Gemma-4-31B, serving batch: every length costs",
            "yes",
            top[1] if top else None,
            "yes" if top and top[1] else "no",
        )
    )
    for model in ("Qwen3-Coder-30B-A3B", "JoyAI-LLM-Flash"):
        top = best(model, 1)
        out.append(
            _claim(
                "n-gram length",
                f"{model} (MoE), single stream: every length costs",
                "yes",
                top[1] if top else None,
                "yes" if top and top[1] else "no",
            )
        )
    return out


def _acceptance(data: _Data) -> list[dict[str, object]]:
    out = []
    s = data.savings.loc[(data.savings["model"] == "Qwen3-Coder-30B-A3B") & (data.savings["drafter"] == "DFlash-16")]
    code, talk = s.loc[s["corpus"] == "code", "a"], s.loc[s["corpus"] == "conversation", "a"]
    a = float(code.median()) if len(code) else None
    verdict = (
        "agrees"
        if a is not None and abs(a - 5.9) < 0.5
        else "near"
        if a is not None and abs(a - 5.9) < 1.5
        else "differs"
    )
    out.append(
        _row(
            "acceptance",
            "Qwen3-Coder, DFlash, code: committed tokens a round",
            "5.9",
            f"{a:.2f}" if a else None,
            verdict,
        )
    )
    out.append(_range("acceptance", "the same on conversation", 2.0, 3.0, [float(v) for v in talk]))
    found = data.saving("Qwen3-Coder-30B-A3B", "H100", "DFlash-16", 64, "conversation")
    out.append(
        _claim(
            "acceptance",
            "the same on conversation at concurrency 64 costs energy",
            "costs",
            found < 0 if found is not None else None,
            f"{found:+.2f}" if found is not None else "",
        )
    )
    for name, models, drafters, low, high in (
        ("co-trained heads", ("GLM-4.7-Flash", "Qwen3.6-35B-A3B"), ("MTP-4",), 0.81, 0.84),
        ("GLM-4.7-Flash's drafter trained afterwards", ("GLM-4.7-Flash",), ("EAGLE3-4",), 0.68, 0.72),
        ("Gemma-4-12B's assistant and DFlash", ("Gemma-4-12B",), ("assistant-6", "DFlash-16"), 0.66, 0.69),
    ):
        kept = []
        for model, drafter in itertools.product(models, drafters):
            rows = data.savings.loc[(data.savings["model"] == model) & (data.savings["drafter"] == drafter)]
            a_rm, a_en = rows.loc[rows["corpus"] == "news_rm", "a"], rows.loc[rows["corpus"] == "news_en", "a"]
            if len(a_rm) and len(a_en):
                kept.append(float(a_rm.median() / a_en.median()))
        out.append(
            _range(
                "language",
                f"retention of committed length in Romansh, all answers, {name}",
                low,
                high,
                kept,
                given="direction",
            )
        )
    return out


def _clocks(data: _Data) -> list[dict[str, object]]:
    p = data.plain.loc[
        (data.plain["model"] == "Qwen3-8B") & (data.plain["gpu"] == "H200") & (data.plain["corpus"] == "code")
    ]
    p = p.loc[p["context_tokens"].isna() & p["capture"].astype(bool)]
    free, locked = (
        p.loc[p["locked_mhz"].isna()].set_index("concurrency"),
        p.loc[p["locked_mhz"] == 1500].set_index("concurrency"),
    )
    both = free.index.intersection(locked.index)
    slower = 1 - locked.loc[both, "throughput"] / free.loc[both, "throughput"]
    saved = 1 - locked.loc[both, "e"] / free.loc[both, "e"]
    spec = data.cells.loc[
        (data.cells["model"] == "Qwen3-8B")
        & (data.cells["gpu"] == "H200")
        & data.cells["drafter"].isin(["DSpark-7", "DFlash-16"])
    ]
    spec = spec.loc[
        (spec["corpus"] == "code") & spec["locked_mhz"].isna() & (spec["concurrency"] >= 16) & (spec["status"] == "ok")
    ]
    mhz = (_numbers(spec["sm_clock_mean_mhz"]) / 1000.0).tolist() if len(spec) else []
    return [
        _range(
            "clocks", "Qwen3-8B on H200, plain at 1500 MHz: throughput lost", 0.03, 0.07, [float(v) for v in slower]
        ),
        _range("clocks", "Qwen3-8B on H200, plain at 1500 MHz: energy saved", 0.04, 0.11, [float(v) for v in saved]),
        _range(
            "clocks",
            "Qwen3-8B on H200, block drafters from concurrency 16: clock that runs by default",
            1.45,
            1.70,
            mhz,
            " GHz",
        ),
    ]


def _capacity(data: _Data) -> list[dict[str, object]]:
    out = []
    for model, gpu, drafter, n, published, state in (
        ("Qwen3.6-27B", "H100", "plain", 16, "runs", "ok"),
        ("Qwen3.6-27B", "H100", "DFlash-16", 16, "cannot start", "infeasible"),
        ("Qwen3.6-27B", "H100", "MTP-4", 16, "runs 12", "partial"),
        ("Qwen3.6-27B", "H200", "MTP-4", 16, "runs 16", "ok"),
        ("Qwen3.6-27B", "H200", "DFlash-16", 64, "limited", "limited"),
        ("Qwen3.6-35B-A3B", "H200", "MTP-4", 64, "runs", "ok"),
    ):
        c = data.cells
        mine = c.loc[
            (c["model"] == model)
            & (c["gpu"] == gpu)
            & (c["drafter"] == drafter)
            & (c["concurrency"] == n)
            & (c["corpus"] == "code")
        ]
        if mine.empty:
            out.append(_row("capacity", f"{model} on {gpu}, {drafter}, concurrency {n}", published, None, ""))
            continue
        status = str(mine["status"].iloc[0])
        peak = mine["realized_batch_peak"].iloc[0] if "realized_batch_peak" in mine else None
        shown = {"ok": f"runs {n}", "partial": f"runs {peak:.0f}" if pd.notna(peak) else "partial"}.get(
            status, "cannot start"
        )
        holds = status in ("partial", "infeasible") if state == "limited" else status == state
        out.append(_claim("capacity", f"{model} on {gpu}, {drafter}, concurrency {n}", published, holds, shown))
    return out


PARTS: tuple[Callable[[_Data], list[dict[str, object]]], ...] = (
    _headline,
    _intervals,
    _drafters,
    _capture,
    _signs,
    _latency,
    _equal_energy,
    _scheme_pairs,
    _ngram,
    _acceptance,
    _clocks,
    _capacity,
)
"""The topics of the table, in its order."""
