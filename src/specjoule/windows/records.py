"""Lists of records kept as columns: a wave holds thousands of samples and arrivals that nobody looks at one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Lists(Sequence[list[Any]]):
    """A column whose every value is itself a list: the lists one after the other, and how long each is."""

    lengths: npt.NDArray[np.int64]
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        end = int(self.lengths[: at + 1].sum())
        return self.values[end - int(self.lengths[at]) : end].tolist()


Column = npt.NDArray[Any] | Sequence[Any]


class Records(Sequence[dict[str, Any]]):
    """A list of records kept as columns: what reads it sees dicts, what writes it needs none."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        return {name: _plain(values[at]) for name, values in self.columns.items()}

    def column(self, name: str) -> list[Any]:
        """Return one field of all records."""
        return [_plain(value) for value in self.columns[name]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def list_array(values: Sequence[Records | Sequence[Mapping[str, Any]] | None], kind: pa.ListType) -> pa.Array:
    """Return the Arrow array of a nested column: for each row a list of records (columns or dicts), or null."""
    some = [v for v in values if v is not None]
    columnar = [v for v in some if isinstance(v, Records)]
    if len(columnar) < len(some):
        return pa.array([v if v is None else list(v) for v in values], kind)
    fields = list(kind.value_type)
    items = pa.StructArray.from_arrays(
        [_joined([v.columns[f.name] for v in columnar], f.type) for f in fields], fields=fields
    )
    lengths = [0 if v is None else len(v) for v in values]
    absent = pa.array([v is None for v in values], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(lengths), items, type=kind, mask=absent)


def _joined(parts: Sequence[Column], kind: pa.DataType) -> pa.Array:
    """Join a field's columns of several record lists: one Arrow array for all, not one for each."""
    lists = [p for p in parts if isinstance(p, Lists)]
    if lists:
        values = pa.array(np.concatenate([p.values for p in lists]), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(np.concatenate([p.lengths for p in lists])), values, type=kind)
    arrays = [p for p in parts if isinstance(p, np.ndarray)]
    if arrays:
        return pa.array(np.concatenate(arrays), kind)
    return pa.array([value for part in parts for value in part], kind)


def _offsets(lengths: npt.ArrayLike) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
