"""Stores of the same model, board, seed and replicate under other block names, and what of them concerns a block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, LAUNCH, SEGMENT, SEGMENT_END


def relatives(study_folder: Path, block: Block) -> list[Path]:
    """Return the store folders of other blocks of the same model, board, seed and replicate, split otherwise."""
    stem = f"{block.model}-{block.gpu}-s{block.seed}-r{block.replicate}"
    if not study_folder.is_dir():
        return []
    return sorted(
        path
        for path in study_folder.iterdir()
        if path.name != block.id and (path.name == stem or path.name.startswith(f"{stem}-")) and path.is_dir()
    )


def inheritable(events: Sequence[dict[str, Any]], wanted: frozenset[str]) -> list[dict[str, Any]]:
    """Return the events of a relative's journal that concern the cells `wanted`, with their segments' own.

    A segment without any of these cells is left out, and so is what its journal says about being interrupted.
    """
    cells = [e for e in events if e["event"] == CELL and e["cell_hash"] in wanted and e.get("file")]
    segments = {e.get("segment_id") for e in cells}
    taken = {id(e) for e in cells}
    return [
        e
        for e in events
        if id(e) in taken or (e["event"] in (SEGMENT, LAUNCH, SEGMENT_END) and e.get("segment_id") in segments)
    ]
