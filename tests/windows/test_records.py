"""Nested columns kept as columns: the same records and the same Arrow arrays as from one dict a record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.windows.records import Lists, Records, list_array

KIND = pa.list_(
    pa.struct([("n", pa.int32()), ("name", pa.string()), ("stamps", pa.list_(pa.int64())), ("x", pa.float64())])
)
record = st.fixed_dictionaries(
    {
        "n": st.integers(0, 1000),
        "name": st.none() | st.text("abé", max_size=5),
        "stamps": st.lists(st.integers(0, 2**60), max_size=4),
        "x": st.floats(allow_nan=False),
    }
)


def columnar(records: list[dict[str, Any]]) -> Records:
    stamps = [r["stamps"] for r in records]
    return Records(
        {
            "n": np.array([r["n"] for r in records], dtype=np.int64),
            "name": [r["name"] for r in records],
            "stamps": Lists(
                np.array([len(s) for s in stamps], dtype=np.int64), np.array([t for s in stamps for t in s], np.int64)
            ),
            "x": np.array([r["x"] for r in records]),
        }
    )


@given(st.lists(st.none() | st.lists(record, max_size=5), max_size=6))
def test_columns_and_dicts_make_the_same_array(rows: list[list[dict[str, Any]] | None]) -> None:
    expected = pa.array(rows, KIND)
    assert list_array(rows, KIND).equals(expected)
    assert list_array([None if r is None else columnar(r) for r in rows], KIND).equals(expected)


@given(st.lists(record, min_size=1, max_size=5))
def test_a_reader_sees_the_records(records: list[dict[str, Any]]) -> None:
    seen = columnar(records)
    assert seen == records
    assert seen[-1] == records[-1]
    assert seen[1:] == records[1:]
    assert seen.column("stamps") == [r["stamps"] for r in records]
    assert list(reversed(seen.columns["stamps"])) == [r["stamps"] for r in reversed(records)]
    assert seen.columns["stamps"][-1] == records[-1]["stamps"]
    with pytest.raises(IndexError):
        seen[len(records)]
