"""What already lies under a study's name and is of another configuration: a measurement made on the spot must not
write over it."""

from __future__ import annotations

from pathlib import Path

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, read_events
from specjoule.blocks.store_index import stored_hashes
from specjoule.errors import ConfigurationError, StoreError
from specjoule.windows.io import read_window_table


def refuse_others(block: Block, store_root: Path, raw: Path) -> None:
    """Raise ConfigurationError where files under the block's study name hold cells that are not the block's.

    A block made on the spot has the same raw paths, block name and record as a study's of the same name, so going on
    would replace that study's raw files by windows of other settings. Reads names, journals and one column.
    """
    known = frozenset(cell.hash for cell in block.cells)
    folder = store_root / block.study
    stores = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = next((store for store in stores if _hashes_in(store) - known), None) or next(
        (raw / cell.path for cell in block.cells if _raw_hashes(raw / cell.path) - {cell.hash}), None
    )
    if found is not None:
        raise ConfigurationError(
            f"{found}: holds cells of '{block.study}' under other settings than the ones asked for, and they would be "
            "written over; give this measurement another --name"
        )


def _hashes_in(store: Path) -> frozenset[str]:
    """Return the hashes of the cells that a block's store keeps or that its journal calls finished."""
    events = read_events(store / "journal.jsonl")
    return stored_hashes(store) | {e["cell_hash"] for e in events if e["event"] == CELL and e.get("status") != "failed"}


def _raw_hashes(path: Path) -> frozenset[str]:
    """Return the cell hashes in a raw file; one that is missing or cannot be read holds nothing worth keeping."""
    if not path.is_file():
        return frozenset()
    try:
        return frozenset(read_window_table(path, ["cell_hash"])["cell_hash"].to_pylist())
    except StoreError:
        return frozenset()
