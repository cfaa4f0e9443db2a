from __future__ import annotations

import pandas as pd
import pytest

from specjoule.errors import ConfigurationError
from specjoule.pairs.capture import capture_effect
from specjoule.pairs.cells import sum_waves
from specjoule.pairs.configurations import configurations, counted_cells
from specjoule.pairs.draft_share import draft_shares
from specjoule.pairs.latency import INFEASIBLE, TargetRule, equal_energy_batch, fastest_per_batch, least_energy
from specjoule.pairs.mixes import break_even_shares, check_mix, mixes_table
from specjoule.pairs.needed import HELPS, NEVER, PAYS, break_even_table
from specjoule.pairs.outcomes import block_drifts, outcomes
from specjoule.pairs.pairing import make_pairs
from specjoule.pairs.scheme_pairs import count_scheme_pairs, scheme_pairs
from specjoule.pairs.summary import summarise
from specjoule.pairs.sweeps import clock_sweep
from specjoule.tables.advice import advise
from specjoule.tables.context import Context
from tests.pairs.frames import cell, frame, study


def test_capture_identity_holds_and_the_direction_is_read_from_it() -> None:
    rows = []
    for capture, plain_j, spec_j in ((False, 2.0, 2.2), (True, 1.0, 1.4)):
        rows += cell("plain", step_j=plain_j, capture=capture)
        rows += cell("dspark-7", step_j=spec_j, committed_per_round=2.8, capture=capture)
    table = frame(rows)
    out = capture_effect(make_pairs(sum_waves(table)).pairs).iloc[0]
    assert out["identity_holds"] and out["shrinks"]
    assert out["c_plain"] == pytest.approx(0.5) and out["c_spec"] == pytest.approx(1.4 / 2.2)
    assert out["saving_on"] < out["saving_off"]


def latency_rows() -> pd.DataFrame:
    rows = []
    for seed in (0, 1, 2):
        for c, ms in ((1, 10.0), (16, 24.0), (64, 40.0)):
            wiggle = 1 + 0.03 * (seed - 1)
            rows += cell("plain", concurrency=c, seed=seed, step_j=1 + 0.1 * c, itl_mean_ms=ms * wiggle)
            rows += cell("dspark-7", concurrency=c, seed=seed, step_j=1.3 + 0.2 * c, committed_per_round=2.8,
                         itl_mean_ms=ms / 2 * wiggle)  # fmt: skip
    return frame(rows)


def test_least_energy_under_a_target() -> None:
    counted = counted_cells(sum_waves(latency_rows()))
    table = configurations(counted)
    out = least_energy(counted, table, TargetRule(24.5)).iloc[0]
    assert out["plain_setting"] == "plain at 16" and out["spec_setting"] == "dspark-7 at 64"
    assert out["plain_seeds_over"] == 1 and out["plain_changes"]  # one seed's own interval is 24.7 ms
    assert out["plain_fallback"] == "plain at 1"
    assert out["ratio_median"] > 0 and out["saving"] == 1 - out["ratio_median"]
    none = least_energy(counted, table, TargetRule(8.0)).iloc[0]
    assert none["plain_setting"] == INFEASIBLE and pd.isna(none["ratio_median"])


def test_equal_energy_batch_and_fastest() -> None:
    table = configurations(counted_cells(sum_waves(latency_rows())))
    out = equal_energy_batch(table).set_index("concurrency")
    assert out.loc[1, "plain_words"] == "16"
    assert fastest_per_batch(table)["fastest_drafter"].tolist() == ["dspark-7"] * 3
    alone = equal_energy_batch(table.loc[(table["scheme"] != "plain") | (table["concurrency"] == 1)])
    assert alone["plain_words"].tolist()[-1] == "> 1"


def test_mixes() -> None:
    rows = study(corpora=["code", "conversation"], concurrencies=[64])
    pairs = make_pairs(sum_waves(rows)).pairs
    out = mixes_table(pairs, {"chat": {"code": 3, "conversation": 7}, "other": {"code": 1, "news_en": 1}})
    assert set(out["mix"]) == {"chat"} and (out["n_seeds"] == 3).all()  # no ratio without every text
    with pytest.raises(ConfigurationError, match="positive"):
        check_mix("bad", {"code": -1})
    assert break_even_shares(summarise(pairs)).empty


def test_scheme_pairs_and_their_exceptions() -> None:
    summary = summarise(make_pairs(sum_waves(study(concurrencies=[64]))).pairs)
    table = scheme_pairs(summary, {"dspark-7": 1, "dflash-16": 1})
    counts = count_scheme_pairs(table).iloc[0]
    assert counts["pairs"] == 3 and counts["longer_spends_less"] == 1  # dspark beats ngram; dflash loses to both
    assert counts["rest_wider"] == 2


def test_break_even_answers() -> None:
    rows = study(concurrencies=[64]).pipe(lambda f: f)
    extra = cell("ngram-4", concurrency=1, step_j=9.0, committed_per_round=1.5) + cell("plain", concurrency=1)
    table = break_even_table(summarise(make_pairs(sum_waves(rows)).pairs)).set_index("drafter")
    assert table.loc["dspark-7", "answer"] == PAYS and table.loc["dflash-16", "answer"] == HELPS
    assert table.loc["dflash-16", "needed_gain"] > 0
    assert break_even_table(summarise(make_pairs(sum_waves(frame(extra))).pairs))["answer"].tolist() == [NEVER]


def test_clock_sweep_compares_within_a_block() -> None:
    rows = cell("plain") + cell("plain", locked_mhz=1200, step_j=0.9, step_s=0.0125)
    out = clock_sweep(counted_cells(sum_waves(frame(rows)))).iloc[0]
    assert out["energy_saving"] == pytest.approx(0.1) and out["throughput_loss"] == pytest.approx(0.2)


def test_draft_share_needs_its_control() -> None:
    def runs(control: float) -> pd.DataFrame:
        parts = [("dspark-7", 1.0), ("dspark-7+nodraft", 0.77), ("dspark-7+random", control)]
        rows = [r for name, j in parts for r in cell(name, step_j=j, scheme="dspark", verify_width=7)]
        return counted_cells(sum_waves(frame(rows)))

    good = draft_shares(runs(1.01)).iloc[0]
    assert good["share"] == pytest.approx(0.23) and good["reported"]
    bad = draft_shares(runs(1.52)).iloc[0]
    assert pd.isna(bad["share"]) and not bad["reported"]


def test_outcomes_and_drift() -> None:
    rows = frame(
        cell("plain") + cell("ngram-4", status="partial", reason="capacity", capacity_requests=12, block_drift=None)
    )
    cells = sum_waves(rows)
    out = outcomes(make_pairs(cells).excluded, cells).iloc[0]
    assert out["reason"] == "capacity" and out["capacity_requests"] == 12 and out["meaning"]
    assert len(block_drifts(rows)) == 1


def test_advice_has_the_tables_interval() -> None:
    texts = ["code", "conversation"]
    context = Context(study(corpora=texts, concurrencies=[1, 4, 16], seeds=range(3)), "test")
    judged = context.judged.set_index(["drafter", "concurrency", "corpus"])
    given = advise(context, model="M", gpu="G", target_ms=1000, mix={"code": 1.0})
    assert given.setting is not None and given.setting.startswith("dspark-7")
    row = judged.loc[("dspark-7", int(given.setting.split()[-1]), "code")]
    assert given.saving_same_batch == row["saving_median"] and given.interval_note == (row["interval_note"] or None)
    assert (given.saving_same_batch_low, given.saving_same_batch_high) == (row["saving_low"], row["saving_high"])
    # Two texts of the same cost: the mix's interval is as wide as either's, and narrower than its own three blocks'.
    mixed = advise(context, model="M", gpu="G", target_ms=1000, mix={"code": 0.5, "conversation": 0.5})
    assert mixed.saving_same_batch == pytest.approx(row["saving_median"])
    width = mixed.saving_same_batch_high - mixed.saving_same_batch_low  # type: ignore[operator]
    assert width == pytest.approx(row["saving_high"] - row["saving_low"], rel=0.1)
    assert width < row["alone_high"] - row["alone_low"]
    # Against the best plain setting, at another batch, it is pooled too.
    assert given.saving_best_plain_low is not None and given.saving_best_plain_high is not None
    assert given.saving_best_plain_low < given.saving_best_plain < given.saving_best_plain_high  # type: ignore[operator]


def test_advice_from_few_seeds_says_so_and_is_json() -> None:
    import json

    def given(seeds: int) -> dict[str, object]:
        context = Context(study(concurrencies=[1, 4], seeds=range(seeds)), "test")
        advice = advise(context, model="M", gpu="G", target_ms=1000, mix={"code": 1.0})
        assert advice.interval_note is not None and advice.interval_note in advice.as_text()
        return json.loads(json.dumps(advice.as_dict(), allow_nan=False))  # type: ignore[no-any-return]

    one, two = given(1), given(2)
    assert one["saving_same_batch_low"] is None and str(one["interval_note"]).startswith("one block: no interval")
    assert two["saving_same_batch_low"] is not None and "cannot carry an interval alone" in str(two["interval_note"])


def test_advice_is_from_measured_settings_only() -> None:
    context = Context(latency_rows(), "test")
    advice = advise(context, model="M", gpu="G", target_ms=24.5, mix={"code": 1.0})
    assert advice.feasible and advice.setting == "dspark-7 at 64" and advice.best_plain == "plain at 16"
    assert advice.saving_best_plain is not None and advice.stale_when and advice.as_dict()["seeds"] == 3
    assert "simulated, not measured" in advice.as_text()
    none = advise(context, model="M", gpu="G", target_ms=1.0, mix={"code": 1.0})
    assert not none.feasible and "infeasible" in none.as_text()
    with pytest.raises(ConfigurationError, match="conversation"):
        advise(context, model="M", gpu="G", target_ms=25, mix={"conversation": 1.0})
    with pytest.raises(ConfigurationError, match="they hold M"):
        advise(context, model="N", gpu="G", target_ms=25, mix={"code": 1.0})
