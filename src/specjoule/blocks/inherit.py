"""Cells finished under another block's name are taken over: splitting a study differently measures nothing again."""

from __future__ import annotations

from collections.abc import Iterable

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, read_events
from specjoule.blocks.relatives import inheritable, relatives
from specjoule.blocks.store import BlockStore
from specjoule.blocks.unpack import unpack
from specjoule.files import write_atomically


def inherit(store: BlockStore, block: Block, known: Iterable[str]) -> int:
    """Copy attempts of this block's cells from its relatives' stores; returns how many files were taken over.

    `known`: cell hashes that the block's own journal has finished. Files first, then the journal, so that a kill in
    between loses nothing. Raises StoreError.
    """
    wanted = frozenset(c.hash for c in block.cells) - frozenset(known)
    taken = 0
    for folder in relatives(store.directory.parent, block) if wanted else []:
        events = inheritable(read_events(folder / "journal.jsonl"), wanted)
        unpack(folder)
        relative = BlockStore(folder.parent.parent, folder.parent.name, folder.name)
        files = 0
        for cell_hash in {e["cell_hash"] for e in events if e["event"] == CELL}:
            for attempt in relative.attempts(cell_hash):
                target = store.directory / "cells" / cell_hash / attempt.path.name
                if not target.exists():
                    data = attempt.path.read_bytes()
                    write_atomically(target, lambda temporary, data=data: temporary.write_bytes(data))  # type: ignore[misc]
                    files += 1
        if files:
            for event in events:
                fields = {k: v for k, v in event.items() if k not in ("event", "time")}
                store.journal.append(event["event"], **fields, inherited_from=folder.name)
        taken += files
    return taken
