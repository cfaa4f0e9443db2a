"""Reading and writing raw window files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.windows.records import list_array
from specjoule.windows.schema import ARROW_SCHEMA, BY_NAME, SCHEMA_VERSION

_RECORDS = ("requests", "refreshes", "samples")
_FLAT = pa.struct([f for f in ARROW_SCHEMA if f.name not in _RECORDS])


def _leaves(field: pa.Field, path: str) -> Iterator[str]:
    """Name the Parquet columns that a field becomes."""
    if pa.types.is_list(field.type):
        yield from _leaves(field.type.value_field, f"{path}.list.element")
    elif pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _leaves(inner, f"{path}.{inner.name}")
    else:
        yield path


_COMPRESSION = {
    leaf: "zstd" if field.name in _RECORDS else "snappy"
    for field in ARROW_SCHEMA
    for leaf in _leaves(field, field.name)
}
"""zstd takes 10 us to begin with a column: too long for a hundred columns of a dozen values, which hardly shrink."""


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
    flat = pa.array([dict(row) for row in rows], type=_FLAT)
    columns = dict(zip((f.name for f in _FLAT), flat.flatten(), strict=True))
    for name in _RECORDS:
        columns[name] = list_array([row.get(name) for row in rows], ARROW_SCHEMA.field(name).type)
    return pa.Table.from_arrays([columns[f.name] for f in ARROW_SCHEMA], schema=ARROW_SCHEMA)


def write_window_table(table: pa.Table, path: Path) -> None:
    """Write a raw window file atomically. Raises StoreError."""
    # Dictionaries and statistics of a dozen rows would be larger than the columns they describe, and slower to write.
    options = {"compression": _COMPRESSION, "use_dictionary": False, "write_statistics": False}
    whole = pa.BufferOutputStream()  # written in one go: straight to a file, every column would be a call of its own
    pq.write_table(table, whole, **options)
    write_atomically(path, lambda temporary: temporary.write_bytes(whole.getvalue()))


def read_window_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a raw window file: all columns of the present schema, or some of those it has.

    Raises StoreError naming the file and what is wrong with it.
    """
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
        raise StoreError(
            f"{path}: is not a whole Parquet file ({str(error).splitlines()[0]}); if it is one of a study's raw "
            "files, delete it: the next run makes it anew from the store"
        ) from error
    return conformed(table, ARROW_SCHEMA, path) if columns is None else table


def conformed(table: pa.Table, schema: pa.Schema, file: Path) -> pa.Table:
    """Return a table of this or an earlier release with exactly the columns of `schema`.

    A column or field that it does not have is null. Raises StoreError where it must not be null or is of another type.
    """
    if table.schema.equals(schema):
        return table
    arrays = []
    have = dict(zip(table.column_names, table.columns, strict=True))
    for field in schema:
        column = have.get(field.name)
        if column is not None:
            try:
                arrays.append(column if column.type.equals(field.type) else _as_type(column, field.type))
            except (pa.ArrowException, ValueError) as error:
                raise StoreError(
                    f"{file}: column '{field.name}' is no {field.type} ({str(error).splitlines()[0]})"
                ) from error
        elif BY_NAME[field.name].nullable:
            arrays.append(pa.nulls(len(table), field.type))
        else:
            raise StoreError(f"{file}: lacks the column '{field.name}' that every raw window has")
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_type(column: pa.ChunkedArray, wanted: pa.DataType) -> Any:
    """Cast a column; fields that a list of structs lacks become null."""
    if not (pa.types.is_list(wanted) and pa.types.is_struct(wanted.value_type)):
        return column.cast(wanted)
    lists = column.combine_chunks()
    items = lists.values
    have = {f.name for f in items.type}
    inner = [
        items.field(f.name).cast(f.type) if f.name in have else pa.nulls(len(items), f.type) for f in wanted.value_type
    ]
    struct = pa.StructArray.from_arrays(inner, fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(lists.offsets, struct, type=wanted, mask=lists.is_null())
