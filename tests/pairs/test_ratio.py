from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.errors import PairingError
from specjoule.pairs.cells import sum_waves
from specjoule.pairs.keys import PAIR_KEYS
from specjoule.pairs.ratio import energy_ratio
from tests.pairs.frames import cell, frame


def sides(**spec_changes: object) -> tuple[pd.Series, pd.Series]:
    spec = sum_waves(frame(cell("ngram-4", step_j=1.2, committed_per_round=1.5, **spec_changes))).iloc[0]
    plain = sum_waves(frame(cell("plain"))).iloc[0]
    return spec, plain


def test_ratio_and_its_identities() -> None:
    spec, plain = sides()
    out = energy_ratio(spec, plain)
    assert out.energy_ratio == pytest.approx(spec["j_per_token"] / plain["j_per_token"])
    assert out.saving == 1 - out.energy_ratio
    assert out.energy_ratio == pytest.approx(out.power_ratio / out.speedup)


@pytest.mark.parametrize("key", [k for k in PAIR_KEYS if k not in ("prompt_tokens", "waves")])
def test_every_pair_key_is_named_when_it_differs(key: str) -> None:
    spec, plain = sides()
    spec = spec.copy()
    spec[key] = "something else"
    with pytest.raises(PairingError, match=key):
        energy_ratio(spec, plain)


def test_capture_mismatch_is_refused() -> None:
    with pytest.raises(PairingError, match="capture differs"):
        energy_ratio(*sides(capture=False))


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("column", ["energy_j", "committed_tokens"])
@pytest.mark.parametrize("side", [0, 1])
def test_missing_zero_and_negative_values_raise(side: int, column: str, value: float | None) -> None:
    both = [s.copy() for s in sides()]
    both[side][column] = value
    with pytest.raises(PairingError, match=column):
        energy_ratio(both[0], both[1])


def test_swapped_sides_invalid_and_incomplete_are_refused() -> None:
    spec, plain = sides()
    with pytest.raises(PairingError, match="denominator"):
        energy_ratio(plain, spec)
    bad = spec.copy()
    bad["validity"], bad["validity_reason"] = "invalid", "meter_gap"
    with pytest.raises(PairingError, match="meter_gap"):
        energy_ratio(bad, plain)
    bad = spec.copy()
    bad["complete"], bad["n_waves"] = False, 1
    with pytest.raises(PairingError, match="1 of 2 waves"):
        energy_ratio(bad, plain)


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1e-3, 1e3))
def test_ratio_is_invariant_to_the_unit_of_energy_and_inverts(
    e_s: float, e_p: float, n_s: int, n_p: int, unit: float
) -> None:
    def side(e: float, n: int) -> dict[str, float]:
        return {"energy_j": e, "committed_tokens": n, "duration_s": 1.0}

    rho = energy_ratio(side(e_s, n_s), side(e_p, n_p)).energy_ratio
    assert energy_ratio(side(e_s * unit, n_s), side(e_p * unit, n_p)).energy_ratio == pytest.approx(rho)
    assert energy_ratio(side(e_p, n_p), side(e_s, n_s)).energy_ratio == pytest.approx(1 / rho)
