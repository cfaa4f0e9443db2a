"""How long cells and blocks will take: the forecast before, the times measured once there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specjoule.blocks.block import Block
from specjoule.cells.cell import Cell
from specjoule.cells.forecast import plain_itl_ms
from specjoule.study.model import Study


def cell_seconds(study: Study, cell: Cell) -> float:
    """Return the forecast of a cell's measuring time, s: plain speed for every drafter, which errs to the long side."""
    itl = plain_itl_ms(study.models[cell.model], study.gpus[cell.gpu], cell.concurrency)
    return cell.waves * (cell.max_new_tokens * itl / 1e3 + 0.5)


def block_seconds(study: Study, cells: Sequence[Cell], measured: Mapping[str, float] | None = None) -> float:
    """Return the forecast of measuring `cells` in one segment, launches included, s.

    `measured` (seconds by cell hash) replaces forecasts, and its ratio to them scales the others.
    """
    measured = measured or {}
    known = [(measured[c.hash], cell_seconds(study, c)) for c in cells if c.hash in measured]
    forecast = sum(f for _, f in known)
    scale = sum(m for m, _ in known) / forecast if forecast else 1.0
    launches = len({c.launch_key for c in cells}) + len({c.condition for c in cells})
    work = sum(measured.get(c.hash, cell_seconds(study, c) * scale) for c in cells)
    return work + launches * study.file.blocks.overhead_s


def study_seconds(study: Study, blocks: Sequence[Block]) -> float:
    """Return the forecast of measuring whole blocks one after the other, s."""
    return sum(block_seconds(study, b.cells) for b in blocks)
