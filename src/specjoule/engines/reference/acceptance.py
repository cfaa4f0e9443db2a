"""Greedy acceptance, cuts and compaction as pure functions: numbers in, numbers out, no model and no tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """How many tokens of one round a request keeps, and why it ends there."""

    kept: int
    """Tokens delivered, 1 <= kept <= offered."""
    dropped: int
    """`cut_tokens` of the round: offered - kept."""
    ended_by: str | None
    """"eos", "length", or None where the request goes on."""
    first_eos: int | None
    """Index among the kept tokens of the first end-of-sequence token; None if there is none."""


def accepted_prefix(drafts: Ids, targets: Ids) -> Ids:
    """Return per row how many leading drafts the target agrees with.

    drafts [n, k] are the proposals, targets [n, k + 1] the target's greedy choice after each verified position:
    targets[:, j] is its token for the place of drafts[:, j]. The row then commits those drafts and
    targets[row, accepted].
    """
    agree = drafts == targets[:, : drafts.shape[1]]
    return np.asarray(np.logical_and.accumulate(agree, axis=1).sum(axis=1), dtype=np.int64)


def cut_round(offered: Sequence[int], room: int, eos_ids: Collection[int], ignore_eos: bool) -> Cut:
    """Say what is kept of the tokens that a round offers to one request.

    room: tokens the request may still deliver (>= 1). The end-of-sequence token itself is delivered. Where it is
    also the last that the limit admits, the request ended by it: the model had finished.
    """
    kept = min(len(offered), room)
    first_eos = next((i for i, token in enumerate(offered[:kept]) if token in eos_ids), None)
    ended_by = None
    if first_eos is not None and not ignore_eos:
        kept, ended_by = first_eos + 1, "eos"
    elif kept == room:
        ended_by = "length"
    return Cut(kept=kept, dropped=len(offered) - kept, ended_by=ended_by, first_eos=first_eos)


def compaction_moves(rows: int, finished: Iterable[int]) -> list[tuple[int, int]]:
    """Return (source, destination) row moves after which the unfinished rows are 0 .. rows - finished - 1.

    A hole is filled by the last row that still runs, so that a finished request costs one row copy at most. Done in
    order, no move overwrites a row that runs.
    """
    holes = sorted(set(finished))
    gone = set(holes)
    remaining = rows - len(holes)
    sources = (row for row in range(rows - 1, remaining - 1, -1) if row not in gone)
    return [(source, hole) for hole, source in zip((h for h in holes if h < remaining), sources, strict=True)]
