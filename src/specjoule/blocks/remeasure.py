"""Mark single cells to be measured again: the journal gets a line, the raw file goes, the stored attempts stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from specjoule.blocks.block import Block
from specjoule.blocks.journal import REMEASURE, summarise
from specjoule.blocks.lock import block_lock
from specjoule.blocks.store import BlockStore
from specjoule.cells.cell import Cell
from specjoule.errors import ConfigurationError, StoreError
from specjoule.study.load import nearest
from specjoule.study.model import PLAIN

MIN_HASH = 6


@dataclass(frozen=True)
class Marked:
    """What marking one cell did."""

    cell: Cell
    block_id: str
    was_measured: bool
    """False: the cell has no finished attempt, so the next run measures it anyway."""
    partner: str | None
    """Raw path of the plain partner that is measured beside it; None for a plain cell."""


def find_cells(blocks: Sequence[Block], names: Sequence[str], raw: Path) -> list[tuple[Block, Cell]]:
    """Return the cells that `names` mean, each once, in the study's order.

    A name is a raw file's path (from the project's root, or below `results/raw`), a cell hash or its first six or more
    digits, or a pattern with `*` over the path below `results/raw`. Raises ConfigurationError with the nearest name.
    """
    everything = [(block, cell) for block in blocks for cell in block.cells]
    wanted: set[str] = set()
    for name in names:
        plain_name = _below_raw(name, raw)
        found = {c.path for _, c in everything if c.path in (plain_name, f"{plain_name}.parquet")}
        if not found and "*" in name:
            found = {c.path for _, c in everything if fnmatchcase(c.path, plain_name)}
        if not found and len(name) >= MIN_HASH:
            found = {c.path for _, c in everything if c.hash.startswith(name.lower())}
        if not found:
            study = blocks[0].study if blocks else "?"
            raise ConfigurationError(
                f"study '{study}' has no cell '{name}'; {nearest(plain_name, [c.path for _, c in everything])}"
            )
        wanted |= found
    return [(block, cell) for block, cell in everything if cell.path in wanted]


def with_their_drafters(blocks: Sequence[Block], chosen: Sequence[tuple[Block, Cell]]) -> list[tuple[Block, Cell]]:
    """Return `chosen` plus, for every plain cell in it, the drafters' cells that are divided by it."""
    keys = {(block.id, cell.partner_key) for block, cell in chosen if cell.drafter == PLAIN}
    paths = {cell.path for _, cell in chosen}
    return [(b, c) for b in blocks for c in b.cells if c.path in paths or (b.id, c.partner_key) in keys]


def mark(store_root: Path, raw: Path, chosen: Sequence[tuple[Block, Cell]]) -> list[Marked]:
    """Journal each cell's remeasuring and remove its raw file, so that the next run measures it and its plain partner.

    Stored attempts are kept; the raw file comes back with all of them. Raises BlockBusy where the block is being
    measured, StoreError where something cannot be written; what was marked before stays marked.
    """
    marked = []
    by_block: dict[str, list[tuple[Block, Cell]]] = {}
    for block, cell in chosen:
        by_block.setdefault(block.id, []).append((block, cell))
    for block_id, items in by_block.items():
        block = items[0][0]
        store = BlockStore(store_root, block.study, block_id)
        if not store.directory.exists():
            marked += [Marked(cell, block_id, False, _partner(block, cell)) for _, cell in items]
            continue
        with block_lock(store.directory / "lock"):
            finished = summarise(store.journal.events()).finished
            for _, cell in items:
                measured = cell.hash in finished
                if measured:
                    store.journal.append(REMEASURE, cell_hash=cell.hash, path=cell.path)
                    _remove(raw / cell.path)
                marked.append(Marked(cell, block_id, measured, _partner(block, cell)))
    return marked


def _below_raw(name: str, raw: Path) -> str:
    path = Path(name)
    for root in (raw, raw.absolute()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


def _partner(block: Block, cell: Cell) -> str | None:
    if cell.drafter == PLAIN:
        return None
    return next((c.path for c in block.cells if c.drafter == PLAIN and c.partner_key == cell.partner_key), None)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed ({error.strerror or error}); remove it and run again") from error
