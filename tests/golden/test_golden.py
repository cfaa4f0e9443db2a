"""Every table of the golden study, number by number. `tests/golden/study.py` says how to change them on purpose."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from specjoule.tables.context import Context
from specjoule.tables.items import ITEMS
from specjoule.tables.provenance import provenance_words
from specjoule.tables.registry import _resolve, build
from tests.golden.study import TABLES, compared_items, difference, golden_context

REMEDY = "if the change is meant: python -m tests.golden.study tables, and commit what changed with the reason"


@pytest.fixture(scope="module")
def context() -> Context:
    return golden_context()


@pytest.mark.parametrize("name", compared_items())
def test_numbers_are_those_that_were_frozen(context: Context, tmp_path: Path, name: str) -> None:
    item = ITEMS[name]
    frozen = TABLES / f"{name}.csv"
    assert frozen.exists(), f"{name} has no frozen numbers; {REMEDY}"
    made = tmp_path / f"{name}.csv"
    if item.kind == "table":
        build(name, context, tmp_path)
    else:
        _resolve(item.compute)(context).assign(provenance=provenance_words(context.meters)).to_csv(made, index=False)
    found = difference(pd.read_csv(made), pd.read_csv(frozen))
    assert found is None, f"{name}: {found}; {REMEDY}"


def test_no_frozen_table_is_left_over() -> None:
    assert {p.stem for p in TABLES.glob("*.csv")} == set(compared_items())


def test_a_changed_number_is_seen() -> None:
    a = pd.DataFrame({"model": ["m", "n"], "saving": [0.5, None], "n": [1, 2]})
    assert difference(a, a) is None
    for column, value in (("saving", 0.500001), ("model", "x"), ("n", 3)):
        b = a.copy()
        b.loc[0, column] = value
        assert f"row 0, column {column}" in str(difference(b, a))
    assert "without ['n']" in str(difference(a.drop(columns="n"), a)) and "1 rows" in str(difference(a[:1], a))


def test_the_frozen_study_is_small() -> None:
    assert sum(p.stat().st_size for p in TABLES.parent.rglob("*") if p.is_file()) < 3_000_000
