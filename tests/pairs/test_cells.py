from __future__ import annotations

import math

import pytest

from specjoule.pairs.cells import join_codes, sum_waves
from tests.pairs.frames import cell, frame


def test_sums_over_waves_and_ratio_of_sums() -> None:
    rows = cell("ngram-4", concurrency=4, waves=2, step_j=2.0, committed_per_round=1.5)
    rows[2]["energy_j"] *= 3  # the second wave costs more: the ratio of sums is not the mean of the ratios
    out = sum_waves(frame(rows)).iloc[0]
    first, second = rows[0], rows[2]
    assert out["energy_j"] == pytest.approx(first["energy_j"] + second["energy_j"])
    assert out["j_per_token"] == pytest.approx(
        (first["energy_j"] + second["energy_j"]) / (first["committed_tokens"] + second["committed_tokens"])
    )
    assert out["committed_per_round"] == pytest.approx(1.5, rel=0.01)
    assert out["j_per_step"] == pytest.approx(out["energy_j"] / (first["steps"] + second["steps"]))
    assert out["n_waves"] == 2 and out["complete"] and out["validity"] == "valid"


def test_a_null_energy_never_counts_as_zero() -> None:
    rows = cell(waves=2)
    rows[0]["energy_j"] = None
    out = sum_waves(frame(rows)).iloc[0]
    assert math.isnan(out["energy_j"]) and math.isnan(out["j_per_token"])


def test_one_invalid_wave_makes_the_attempt_invalid_and_reasons_unite() -> None:
    rows = cell(waves=3)
    rows[0].update(validity="invalid", validity_reason="meter_gap,cache_hit")
    rows[4].update(validity="invalid", validity_reason="cache_hit,foreign_processes")
    out = sum_waves(frame(rows)).iloc[0]
    assert out["validity"] == "invalid"
    assert out["validity_reason"] == "meter_gap,cache_hit,foreign_processes"


def test_missing_wave_is_incomplete() -> None:
    out = sum_waves(frame(cell(waves=3)[:2])).iloc[0]
    assert out["n_waves"] == 1 and not out["complete"]


def test_attempts_and_references_stay_apart() -> None:
    rows = cell() + cell(attempt=2) + cell(role="reference", launch=5)
    assert len(sum_waves(frame(rows))) == 3


def test_no_rows() -> None:
    assert sum_waves(frame([])).empty


def test_join_codes() -> None:
    assert join_codes(["a,b", "b", ",c,"]) == "a,b,c"
