"""Inodes: the finished attempts of a block in one archive, every single cell still readable by itself.

    {store}/{study}/{block}/cells.zip      members {cell hash}/{file}, not compressed again

The archive is written and checked before a loose file goes, and unpacked before the block is measured again.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.blocks.block import Block
from specjoule.blocks.journal import read_events, summarise
from specjoule.blocks.lock import block_lock
from specjoule.blocks.store import BlockStore
from specjoule.blocks.store_index import PACK
from specjoule.blocks.todo import todo
from specjoule.blocks.unpack import unpack
from specjoule.cells.cell import Cell
from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.windows.io import conformed, read_window_table
from specjoule.windows.schema import ARROW_SCHEMA
from specjoule.workflow import Project


@dataclass(frozen=True)
class Compacted:
    """What compacting a block did."""

    block_id: str
    packed: int
    """Attempts in the archive."""
    files_removed: int
    """Files and folders that are no longer there."""
    bytes: int


def compact_block(project: Project, block: Block, *, raw: bool = False) -> Compacted:
    """Pack the block's stored attempts into one archive; with `raw` remove its raw files too (they can be rebuilt).

    Raises StoreError where cells of the block are still to be measured or a file is damaged, BlockBusy where it is
    being measured; nothing is removed then.
    """
    store = BlockStore(project.store, project.name, block.id)
    if not store.directory.is_dir():
        raise StoreError(f"block {block.id}: nothing is stored yet; measure it first")
    with block_lock(store.directory / "lock"):
        left = todo(block, summarise(read_events(store.journal.path)))
        if left:
            raise StoreError(f"block {block.id}: {len(left)} cells are still to be measured; finish it first")
        cells = store.directory / "cells"
        loose = sorted(p for p in cells.rglob("*") if p.is_file() and not p.name.startswith("."))
        pack = store.directory / PACK
        if loose:
            unpack(store.directory)  # whatever an earlier archive holds belongs into the new one
            loose = sorted(p for p in cells.rglob("*") if p.is_file() and not p.name.startswith("."))
            write_atomically(pack, lambda temporary: _write(temporary, cells, loose))
            _check(pack, len(loose))
        removed = len(loose) + len({p.parent for p in loose})
        shutil.rmtree(cells, ignore_errors=True)
        if raw:
            for cell in block.cells:
                path = project.raw_file(cell)
                removed += path.is_file()
                path.unlink(missing_ok=True)
    with zipfile.ZipFile(pack) as archive:
        members = len(archive.namelist())
    return Compacted(block.id, members, removed, pack.stat().st_size)


def restore_block(project: Project, block: Block) -> int:
    """Unpack a block and rebuild its raw files; returns how many raw files there are. Raises StoreError, BlockBusy."""
    store = BlockStore(project.store, project.name, block.id)
    with block_lock(store.directory / "lock"):
        unpack(store.directory)
        return sum(store.build_raw(cell, project.raw_file(cell)) for cell in block.cells)


def read_cell(project: Project, block: Block, cell: Cell) -> pa.Table:
    """Return all attempts of one cell, wherever they are: raw file, loose or packed. Raises StoreError."""
    raw = project.raw_file(cell)
    if raw.is_file():
        return read_window_table(raw)
    store = BlockStore(project.store, project.name, block.id)
    tables = [read_window_table(a.path) for a in store.attempts(cell.hash)]
    if not tables:
        tables = _packed_tables(store.directory / PACK, cell.hash)
    if not tables:
        raise StoreError(f"{cell.path}: is not measured yet; run the study first")
    return pa.concat_tables(tables)


def _packed_tables(pack: Path, cell_hash: str) -> list[pa.Table]:
    if not pack.is_file():
        return []
    try:
        with zipfile.ZipFile(pack) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(f"{cell_hash}/") and n.endswith(".parquet"))
            return [conformed(pq.read_table(io.BytesIO(archive.read(n))), ARROW_SCHEMA, pack / n) for n in names]
    except (zipfile.BadZipFile, OSError, pa.ArrowException) as error:
        raise StoreError(f"{pack}: cannot be read ({error})") from error


def _write(temporary: Path, cells: Path, loose: list[Path]) -> None:
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for path in loose:
            archive.write(path, str(path.relative_to(cells)))


def _check(pack: Path, expected: int) -> None:
    with zipfile.ZipFile(pack) as archive:
        damaged = archive.testzip()
        if damaged is not None or len(archive.namelist()) != expected:
            pack.unlink()
            raise StoreError(f"{pack}: was not written whole ({damaged}); the loose files were kept")
