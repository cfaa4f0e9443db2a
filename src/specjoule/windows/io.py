"""Reading and writing raw window files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.windows.schema import ARROW_SCHEMA, BY_NAME, SCHEMA_VERSION


class Records(Sequence[dict[str, Any]]):
    """A list of records kept as columns: what reads it sees dicts, what writes it needs none."""

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return {n: v[at].item() if isinstance(v[at], np.generic) else v[at] for n, v in self.columns.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _lists_of(values: Sequence[Any], kind: pa.ListType) -> pa.Array:
    """Make a column of lists of records, from columns where they are kept as such."""
    if not all(v is None or isinstance(v, Records) for v in values):
        return pa.array([v if v is None else list(v) for v in values], kind)
    offsets = np.concatenate([[0], np.cumsum([0 if v is None else len(v) for v in values])]).astype(np.int32)
    some = [v for v in values if v is not None]
    fields = list(kind.value_type)
    inner = [
        pa.concat_arrays([pa.array(v.columns[f.name], f.type) for v in some]) if some else pa.array([], f.type)
        for f in fields
    ]
    items = pa.StructArray.from_arrays(inner, fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=pa.array([v is None for v in values]))


def table_from_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Make a table of the schema from rows; a column the schema lacks, or a required one left out, is an error.

    Raises ValueError: a row that does not fit is a fault in the code that made it, never of the user.
    """
    unknown = {key for row in rows for key in row} - set(BY_NAME)
    if unknown:
        raise ValueError(f"columns not in the schema: {', '.join(sorted(unknown))}")
    for name, column in BY_NAME.items():
        if not column.nullable and any(row.get(name) is None for row in rows):
            raise ValueError(f"column '{name}' must not be null")
    plain = pa.schema([f for f in ARROW_SCHEMA if f.name != "samples"], metadata=ARROW_SCHEMA.metadata)
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=plain)
    at = ARROW_SCHEMA.get_field_index("samples")
    field = ARROW_SCHEMA.field(at)
    return table.add_column(at, field, _lists_of([row.get("samples") for row in rows], field.type))


def write_window_table(table: pa.Table, path: Path) -> None:
    """Write a raw window file atomically. Raises StoreError."""
    # Dictionaries and statistics of a dozen rows would be larger than the columns they describe, and slower to write.
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, **options))


def read_window_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a raw window file, all columns or some. Raises StoreError naming the file and what is wrong with it."""
    if path.is_dir():
        raise StoreError(f"{path}: is a folder, not a raw window file")
    try:
        # In one go: raw files are small, and each access of its own costs a round trip on a cluster's file system.
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
        version = int((file.schema_arrow.metadata or {}).get(b"specjoule_schema_version", b"0"))
        if version == 0:
            raise StoreError(f"{path}: is a Parquet file but not one of raw windows; name a file below results/raw")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path}: was written by a newer release (schema {version}, this one reads up to {SCHEMA_VERSION}); "
                "upgrade specjoule"
            )
        table = file.read(columns=list(columns) if columns is not None else None, use_threads=False)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (pa.ArrowException, ValueError) as error:
        raise StoreError(f"{path}: is not a whole Parquet file ({str(error).splitlines()[0]})") from error
    return table
