"""Blocks: what one job measures on one board, so that both sides of every pair share board, job and hour."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specjoule.cells.cell import Cell
from specjoule.study.model import MATCHED, PLAIN


@dataclass(frozen=True)
class Block:
    """The cells of one model, GPU type, seed and replicate (split further where the study says)."""

    id: str
    study: str
    model: str
    gpu: str
    seed: int
    replicate: int
    cells: tuple[Cell, ...]

    @cached_property
    def digest(self) -> str:
        """One digest of the cells' hashes: the only thing of them that Snakemake's parameters hold."""
        return hashlib.sha256("\n".join(sorted(f"{c.path} {c.hash}" for c in self.cells)).encode()).hexdigest()[:32]


def make_blocks(cells: Sequence[Cell], split_by: Sequence[str] = ()) -> list[Block]:
    """Group cells into blocks, in the order in which they first occur.

    `split_by` names further factors (corpus, capture, locked_mhz, context_tokens); every pair's two sides agree in
    them, so a split never separates a pair.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        parts = [cell.model, cell.gpu, f"s{cell.seed}", f"r{cell.replicate}"]
        for factor in split_by:
            value = getattr(cell, factor)
            if value is not None:
                parts.append(f"{factor}_{value}" if factor != "corpus" else str(value))
        groups.setdefault("-".join(parts), []).append(cell)
    return [
        Block(
            id=block_id,
            study=c[0].study,
            model=c[0].model,
            gpu=c[0].gpu,
            seed=c[0].seed,
            replicate=c[0].replicate,
            cells=tuple(c),
        )
        for block_id, c in groups.items()
    ]


@dataclass(frozen=True)
class Launch:
    """One start of the engine within a segment, and the cells it measures in order."""

    drafter: str
    capture: bool
    locked_mhz: int | None
    role: str
    """'cell', or 'reference' for the closing plain."""
    cells: tuple[Cell, ...]
    instrumentation: str | None = None


def plan_segment(block: Block, todo: Sequence[Cell], segment_number: int, reference_cells: int) -> list[Launch]:
    """Return the launches of a segment that measures `todo` (with partners already added) in drawn order.

    For each capture state, clock and instrumentation: plain first (its cells are the denominators and the drift's
    start), then the drafters in random order, cells in random order within a launch, and at the end plain once more for
    `reference_cells` of the plain cells (under the study's own flags: a board has one drift). Drawn from the block's
    seed and the segment's number; recorded in the rows.
    """
    rng = random.Random(f"specjoule-order/{block.id}/{segment_number}")
    conditions = sorted({c.condition for c in todo}, key=lambda k: (k[0], k[1] or 0, k[2] or ""))
    rng.shuffle(conditions)
    launches: list[Launch] = []
    closings: list[Launch] = []
    for condition in conditions:
        capture, mhz, flags = condition
        here = [c for c in todo if c.condition == condition]
        drafters = sorted({c.drafter for c in here} - {PLAIN})
        rng.shuffle(drafters)
        if MATCHED in drafters and len(drafters) > 1:
            # The matched baseline takes its scheduler's settings from a speculative launch, so one must come before.
            drafters.remove(MATCHED)
            drafters.insert(rng.randint(1, len(drafters)), MATCHED)
        plain = _shuffled([c for c in here if c.drafter == PLAIN], rng)
        if plain:
            launches.append(Launch(PLAIN, capture, mhz, "cell", tuple(plain), flags))
        for drafter in drafters:
            mine = _shuffled([c for c in here if c.drafter == drafter], rng)
            launches.append(Launch(drafter, capture, mhz, "cell", tuple(mine), flags))
        if plain and reference_cells and flags is None:
            # Spread over concurrencies: the drift of the smallest and the largest batch need not be the same.
            spread = sorted(plain, key=lambda c: c.concurrency)
            picks = {round(i * (len(spread) - 1) / max(1, reference_cells - 1)) for i in range(reference_cells)}
            closings.append(Launch(PLAIN, capture, mhz, "reference", tuple(spread[i] for i in sorted(picks))))
    return launches + closings


def with_partners(block: Block, unfinished: Sequence[Cell]) -> list[Cell]:
    """Return `unfinished` plus the plain partner of every drafter's cell in it, in the block's order.

    Pairs are made within a segment only, so a cell measured anew needs its plain side measured beside it.
    """
    wanted = {c.hash for c in unfinished}
    partners = {c.partner_key for c in unfinished if c.drafter != PLAIN}
    return [c for c in block.cells if c.hash in wanted or (c.drafter == PLAIN and c.partner_key in partners)]


def _shuffled(cells: list[Cell], rng: random.Random) -> list[Cell]:
    ordered = sorted(cells, key=lambda c: c.path)
    rng.shuffle(ordered)
    return ordered
