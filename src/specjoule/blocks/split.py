"""Splitting long blocks, and the order in which blocks go to the queue. Pure functions of the study, never of results.

A split never separates the two sides of a pair. It changes the names of blocks and so of their stores: cells that were
finished under the old names are taken over by `blocks.inherit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specjoule.blocks.block import Block
from specjoule.blocks.estimate import block_seconds
from specjoule.study.model import Study

FACTORS = ("corpus", "context_tokens", "locked_mhz", "capture")
"""In this order: a corpus shares nothing with another but its servers' start."""


def split_long(study: Study, blocks: Sequence[Block], max_minutes: float | None) -> list[Block]:
    """Return the blocks with those whose forecast is above `max_minutes` split, by one factor after the other.

    A block that is still too long without any factor to split by stays: it stops before its limit and goes on later.
    """
    if max_minutes is None:
        return list(blocks)
    return [part for block in blocks for part in _split(study, block, max_minutes * 60, FACTORS)]


def _split(study: Study, block: Block, max_s: float, factors: Sequence[str]) -> list[Block]:
    if not factors or block_seconds(study, block.cells) <= max_s:
        return [block]
    factor, rest = factors[0], factors[1:]
    values = list(dict.fromkeys(getattr(c, factor) for c in block.cells))
    if len(values) == 1:
        return _split(study, block, max_s, rest)
    parts = []
    for value in values:
        cells = tuple(c for c in block.cells if getattr(c, factor) == value)
        parts += _split(study, replace(block, id=f"{block.id}-{part_name(factor, value)}", cells=cells), max_s, rest)
    return parts


def part_name(factor: str, value: object) -> str:
    """Return the part of a block's name that stands for one value of a factor."""
    if factor == "corpus":
        return str(value)
    if factor == "capture":
        return "captured" if value else "eager"
    return f"{factor}_{'none' if value is None else value}"


def submission_ranks(blocks: Sequence[Block]) -> dict[str, int]:
    """Return each block's place in the queue, 0 first: every model and board once, then once more, and so on.

    So the first seeds of all models are there early, and what is cut off at the end is depth, not a model.
    """
    turn: dict[tuple[str, str], int] = {}
    keys = []
    by_seed = sorted(range(len(blocks)), key=lambda i: (blocks[i].replicate, _seed_place(blocks, i), i))
    for i in by_seed:
        key = (blocks[i].model, blocks[i].gpu)
        turn[key] = turn.get(key, -1) + 1
        keys.append((turn[key], i))
    return {blocks[i].id: rank for rank, (_, i) in enumerate(sorted(keys))}


def _seed_place(blocks: Sequence[Block], i: int) -> int:
    same = dict.fromkeys(b.seed for b in blocks if (b.model, b.gpu) == (blocks[i].model, blocks[i].gpu))
    return list(same).index(blocks[i].seed)
