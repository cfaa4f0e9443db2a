"""A table of what stands side by side has the rows that occur, not those that could."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specjoule.pairs.keys import side_by_side


def test_combinations_that_do_not_occur_have_no_row() -> None:
    """All combinations of nine keys with twelve values each would be more than memory holds."""
    n = 12
    keys = [f"k{i}" for i in range(9)]
    frame = pd.DataFrame({k: [f"v{j}" for j in range(n)] for k in keys} | {"mhz": [np.nan] * n})
    both = pd.concat(
        [frame.assign(kind="a", e=1.0), frame[:5].assign(kind="b", e=2.0), frame[:1].assign(kind="b", e=4.0)]
    )
    out = side_by_side(both, [*keys, "mhz"], "kind", "e", ("a", "b", "c"))
    assert len(out) == n and out["c"].isna().all() and (out["a"] == 1.0).all()
    assert sorted(out["b"].dropna()) == pytest.approx([2.0, 2.0, 2.0, 2.0, 3.0])
