from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjoule.errors import StoreError
from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import Pairs, make_pairs
from specjoule.pairs.ratio import energy_ratio
from specjoule.reasons import Reason
from tests.pairs.frames import cell, frame, study


def paired(rows: list[dict]) -> Pairs:
    table = frame(rows)
    return make_pairs(sum_waves(table), sum_waves(table, "decode"))


def only_reason(rows: list[dict]) -> str:
    out = paired(rows)
    assert out.pairs.empty and len(out.excluded) == 1
    return str(out.excluded.iloc[0]["reason"])


def test_regular_study_pairs_everything() -> None:
    rows = study()
    out = make_pairs(sum_waves(rows), sum_waves(rows, "decode"))
    assert len(out.pairs) == 36 and out.excluded.empty
    assert set(out.pairs["r_e_window"]) == {"decode"}
    # the decomposition holds in the window it is taken from: rho = r_E / A at the same batch
    assert (out.pairs["energy_ratio_decode"]).to_numpy() == pytest.approx(
        (out.pairs["r_e"] * out.pairs["a_plain"] / out.pairs["a_spec"]).to_numpy()
    )


def test_pairs_agree_with_the_ratio_function() -> None:
    spec, plain = cell("ngram-4", step_j=1.2, committed_per_round=1.5), cell("plain")
    pair = paired(spec + plain).pairs.iloc[0]
    direct = energy_ratio(sum_waves(frame(spec)).iloc[0], sum_waves(frame(plain)).iloc[0])
    assert pair["energy_ratio"] == pytest.approx(direct.energy_ratio)
    assert pair["speedup"] == pytest.approx(direct.speedup)
    assert pair["power_ratio"] == pytest.approx(direct.power_ratio)


def test_without_decode_windows_the_generation_window_is_named() -> None:
    pair = paired(cell("ngram-4", decode=False) + cell("plain")).pairs.iloc[0]
    assert pair["r_e_window"] == "generation" and pair["r_e"] > 0


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ([], Reason.NO_PLAIN_PARTNER),
        (cell(segment_id="other"), Reason.NO_PLAIN_PARTNER),
        (cell(role="reference"), Reason.NO_PLAIN_PARTNER),
        (cell(validity="invalid", validity_reason="meter_gap"), Reason.PLAIN_INVALID),
        (cell(status="partial", reason="capacity"), Reason.PLAIN_PARTIAL),
        (cell(gpu_uuid="GPU-1"), Reason.KEYS_DIFFER),
        (cell(driver="2.0"), Reason.KEYS_DIFFER),
        (cell(governor=None), Reason.KEYS_DIFFER),
        (cell(capture=False), Reason.KEYS_DIFFER),
        (cell(locked_mhz=1500), Reason.KEYS_DIFFER),
        (cell(prompt_tokens=51), Reason.KEYS_DIFFER),
    ],
)
def test_why_a_cell_is_in_no_pair(plain: list[dict], reason: Reason) -> None:
    assert only_reason(cell("ngram-4") + plain) == reason.value


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "infeasible", "reason": "oom_load", "energy_j": None, "validity": "not_measured"}, "oom_load"),
        ({"status": "partial", "reason": "capacity"}, "capacity"),
        ({"status": "failed", "reason": "interrupted", "energy_j": None}, "interrupted"),
        ({"validity": "invalid", "validity_reason": "cache_hit,meter_gap"}, "cache_hit,meter_gap"),
        ({"energy_j": 0.0}, "zero_energy"),
        ({"energy_j": None}, "no_meter"),
        ({"committed_tokens": 0}, "no_tokens"),
        ({"energy_j": float("inf")}, "no_meter"),
        ({"duration_s": None}, "not_reported"),
        ({"duration_s": 0.0}, "window_too_short"),
        ({"duration_s": float("inf")}, "not_reported"),
    ],
)
def test_own_reasons_come_first(changes: dict, reason: str) -> None:
    assert only_reason(cell("ngram-4", **changes) + cell()) == reason
    assert only_reason(cell("ngram-4", **changes)) == reason or changes.get("status") is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"energy_j": float("inf")}, "no_meter"), ({"duration_s": None}, "not_reported"),
        ({"duration_s": 0.0}, "window_too_short"),
    ],
)  # fmt: skip
def test_a_plain_side_without_energy_or_length_is_no_partner(changes: dict, reason: str) -> None:
    assert only_reason(cell("ngram-4") + cell(**changes)) == reason


@pytest.mark.parametrize("key", ["gpu_uuid", "engine_version", "model", "verify_width"])
def test_waves_of_two_things_make_no_pair(key: str) -> None:
    spec, plain = cell("ngram-4"), cell()
    for side, reason in ((spec, Reason.KEYS_DIFFER), (plain, Reason.PLAIN_INVALID)):
        before = [row[key] for row in side]
        for row in side:
            if row["wave"] == 1:
                row[key] = 9 if key == "verify_width" else "another"
        out = paired(spec + plain)
        assert out.pairs.empty
        (excluded,) = out.excluded.to_dict("records")
        assert excluded["reason"] == reason.value
        assert excluded["reason_detail"] == (f"between waves: {key}" if side is spec else "keys_differ")
        for row, value in zip(side, before, strict=True):
            row[key] = value
    assert len(paired(spec + plain).pairs) == 1


@pytest.mark.parametrize("column", ["status", "validity"])
def test_an_outcome_that_is_not_known_is_an_error_that_names_the_file(column: str) -> None:
    rows = cell("ngram-4")
    rows[2][column] = "weird"
    with pytest.raises(StoreError, match=rf"\.parquet: {column} 'weird' is none of "):
        paired(rows + cell())


def test_differing_keys_are_named() -> None:
    out = paired(cell("ngram-4") + cell(gpu_uuid="GPU-1", driver="2"))
    assert out.excluded.iloc[0]["reason_detail"] == "gpu_uuid,driver"
    out = paired(cell("ngram-4") + cell(capture=False))
    assert out.excluded.iloc[0]["reason_detail"] == "capture"


def test_newest_segment_with_both_sides_counts_even_if_an_older_one_looks_better() -> None:
    old = {"segment_id": "a", "started_at": "2026-01-01T00:00:00Z"}
    new = {"segment_id": "b", "started_at": "2026-01-02T00:00:00Z", "attempt": 2}
    rows = cell("ngram-4", **old) + cell(**old) + cell("ngram-4", step_j=9.0, **new) + cell(**new)
    out = paired(rows)
    assert list(out.pairs["segment_id"]) == ["b"]
    rows = cell("ngram-4", **old) + cell(**old) + cell(**new)  # only plain was measured again
    assert list(paired(rows).pairs["segment_id"]) == ["a"]
    broken = {"validity": "invalid", "validity_reason": "meter_gap"}
    rows = cell("ngram-4", **old) + cell(**old) + cell("ngram-4", **new, **broken) + cell(**new)
    assert only_reason(rows) == "meter_gap"  # finished, hence done: no retreat to an older segment


def test_first_valid_attempt_counts_within_a_segment() -> None:
    bad = {"validity": "invalid", "validity_reason": "thermal_slowdown"}
    rows = cell("ngram-4", **bad) + cell("ngram-4", attempt=2) + cell("ngram-4", attempt=3, step_j=5.0) + cell()
    assert list(paired(rows).pairs["attempt_spec"]) == [2]


def test_matched_baseline_has_its_own_column() -> None:
    out = paired(cell("ngram-4", step_j=1.2) + cell() + cell("plain-matched", step_j=1.1)).pairs
    row = out.loc[out["drafter"] == "ngram-4"].iloc[0]
    assert row["energy_ratio_matched"] == pytest.approx(row["energy_ratio"] / 1.1)


_outcomes = st.sampled_from(
    [
        {},
        {"validity": "invalid", "validity_reason": "meter_gap"},
        {"status": "partial", "reason": "capacity"},
        {"status": "infeasible", "reason": "oom_run", "energy_j": None, "validity": "not_measured"},
        {"energy_j": 0.0},
    ]
)
_attempts = st.tuples(
    st.sampled_from(["plain", "ngram-4", "dspark-7", "plain-matched"]),
    st.sampled_from([1, 4]),
    st.sampled_from(["a", "b"]),
    st.integers(1, 2),
    st.sampled_from(["GPU-0", "GPU-1"]),
    st.booleans(),
    _outcomes,
)


@settings(max_examples=60)
@given(st.lists(_attempts, max_size=12, unique_by=lambda t: t[:4]))
def test_every_speculative_cell_is_accounted_for_exactly_once(attempts: list[tuple]) -> None:
    rows: list[dict] = []
    for drafter, c, segment, attempt, board, capture, outcome in attempts:
        rows += cell(
            drafter, concurrency=c, segment_id=segment, attempt=attempt, gpu_uuid=board, capture=capture, waves=1,
            started_at=f"2026-01-0{1 + (segment == 'b')}", **outcome,
        )  # fmt: skip
    out = paired(rows)
    table = frame(rows)
    wanted = sorted(table.loc[table["scheme"] != "plain", "cell_hash"].unique())
    got = sorted([*out.pairs["hash_spec"], *out.excluded["cell_hash"]])
    assert got == wanted
    assert (out.excluded["reason"].astype("str") != "").all() and out.excluded["reason"].notna().all()
    known = {r.value for r in Reason}
    assert set(",".join(out.excluded["reason"]).split(",")) - {""} <= known
    if not out.pairs.empty:
        assert (out.pairs["energy_ratio"] > 0).all()
        spec = sum_waves(table).set_index(["cell_hash", "segment_id", "attempt"])
        for row in out.pairs.itertuples():
            a = spec.loc[(row.hash_spec, row.segment_id, row.attempt_spec)]
            b = spec.loc[(row.hash_plain, row.segment_id, row.attempt_plain)]
            assert isinstance(a, pd.Series) and a["gpu_uuid"] == b["gpu_uuid"] and a["capture"] == b["capture"]
            assert a["validity"] == b["validity"] == "valid" and a["status"] == b["status"] == "ok"
