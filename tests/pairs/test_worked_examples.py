"""The worked examples that the definitions come with; each is a check of the function that computes it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specjoule.pairs.acceptance import (
    expected_committed,
    marginal_width_limit,
    survival_from_conditional,
    survival_from_histogram,
)
from specjoule.pairs.decomposition import break_even_committed, needed_gain, ratio_from_power, ratio_from_rounds
from specjoule.pairs.summary import summarise


def test_paired_ratio_is_not_the_ratio_of_medians() -> None:
    pairs = pd.DataFrame(
        {
            "model": "M", "seed": [0, 1, 2], "e_spec_j": [1.0, 3.0, 2.0], "e_plain_j": [2.0, 3.0, 5.0],
            "gpu_uuid": "G", "r_e_window": "decode", "unique_prompts": 1,
            "energy_spec_j": [1.0, 3.0, 2.0], "energy_plain_j": [2.0, 3.0, 5.0],
            "tokens_spec": 1.0, "tokens_plain": 1.0,
            "duration_spec_s": 1.0, "duration_plain_s": 1.0,
        }
    )  # fmt: skip
    pairs["energy_ratio"] = pairs["e_spec_j"] / pairs["e_plain_j"]
    out = summarise(pairs, ("model",)).iloc[0]
    assert out["ratio_median"] == pytest.approx(0.5)  # medians first would give 2/3
    assert out["ratio_half_range"] == pytest.approx((1.0 - 0.4) / 2)
    assert out["ratio_totals"] == pytest.approx(6 / 10)


def test_rounds_explain_the_ratio() -> None:
    assert ratio_from_rounds(1.9, 2.6) == pytest.approx(0.731, abs=5e-4)
    assert ratio_from_rounds(3.6, 3.2) == pytest.approx(1.125)
    assert break_even_committed(3.6) == 3.6
    assert needed_gain(3.6, 3.2) == pytest.approx(1.125)


def test_faster_and_dearer() -> None:
    assert ratio_from_power(1.35, 1.20) == pytest.approx(1.125)


def test_expected_committed_tokens() -> None:
    for k, a in ((6, 3.06), (15, 3.32)):
        assert expected_committed(survival_from_conditional(np.full(k, 0.7))) == pytest.approx(a, abs=5e-3)
    survival = survival_from_histogram([1, 1, 2])  # 4 rounds: none, one, two, two kept
    assert survival.tolist() == [0.75, 0.5]
    assert expected_committed(survival) == 1 + (0 + 1 + 2 + 2) / 4


def test_marginal_width() -> None:
    survival = survival_from_conditional(np.full(15, 0.7))
    assert marginal_width_limit(survival, 6) == pytest.approx(0.0269, abs=5e-5)
    with pytest.raises(ValueError, match="position 16"):
        marginal_width_limit(survival, 15)
