"""`specjoule plan`: what a study will take before anything is submitted, and what is left after a part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specjoule.blocks.capacity import expected_capacity
from specjoule.blocks.progress import BlockProgress, Pace, block_folder, pace, read_progress
from specjoule.blocks.relatives import relatives
from specjoule.blocks.store_index import stored_hashes
from specjoule.blocks.todo import STALE, todo
from specjoule.cells.cell import Cell
from specjoule.reasons import Reason
from specjoule.study.model import Study
from specjoule.workflow import Project

TRACE_BYTES_S = 700.0
"""Compressed bytes of the meter's trace per second of a window (10 refreshes and 20 samples of four channels)."""
REQUEST_BYTES = 1300.0
"""Compressed bytes of one request without its text: counts, digests, acceptance histogram."""
TOKEN_BYTES = 9.0
"""Compressed bytes of one committed token: its text, id, arrival stamp."""
ROW_BYTES = 40_000.0
"""Fixed part of a raw file: its schema of about 150 columns and their statistics."""


@dataclass(frozen=True)
class PlannedBlock:
    """One job to come."""

    block_id: str
    model: str
    gpu: str
    cells: int
    to_measure: int
    """Unfinished cells with the plain partners that run beside them."""
    launches: int
    seconds: float
    running: bool
    why: dict[str, int]


@dataclass(frozen=True)
class GpuHours:
    """Board time by kind of board and model, h."""

    gpu: str
    model: str
    blocks: int
    whole_h: float
    """The whole study from nothing, at the pace known now."""
    left_h: float


@dataclass(frozen=True)
class StudyPlan:
    """What is to be measured and what it will take."""

    study: str
    cells: int
    finished: int
    to_measure: int
    """Unfinished cells (partners measured again beside them not counted)."""
    partners: int
    """Plain cells measured again because a pair's sides must share a segment."""
    why: dict[str, int]
    stale: int
    blocks: tuple[PlannedBlock, ...]
    """Blocks with something to measure, in the study's order."""
    blocks_total: int
    gpu_hours: tuple[GpuHours, ...]
    left_h: float
    whole_h: float
    times_from: str
    """'forecast', or 'N measured cells' where measured times scale it."""
    disk_bytes: float
    """Forecast size of raw files, store and journals of the whole study."""
    files: int
    """Forecast number of files of the whole study, not compacted."""
    expected_infeasible: dict[str, int]
    """By reason, cells that are not expected to run: fewer prompts than a batch needs, or, where the board's memory is
    known, no memory for them."""
    expected_partial: int | None
    """Cells expected to run fewer requests at once than asked; None where the board's memory is not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self)


def study_plan(project: Project) -> StudyPlan:
    """Read the study's journals and stores and plan. Raises ConfigurationError, StoreError."""
    blocks = [_with_lost_files(project, b) for b in read_progress(project)]
    return plan_of(project, blocks, _capacities(project.study, project.cells))


def plan_of(
    project: Project, blocks: Sequence[BlockProgress], capacities: Mapping[str, tuple[int, str | None]] | None
) -> StudyPlan:
    """Return the plan from what was read; a pure function of its arguments.

    `capacities`: by cell path, how many requests the memory model expects to fit and why fewer than asked.
    """
    study = project.study
    rate = pace(study, blocks)
    open_blocks = tuple(_planned(study, b, rate) for b in blocks if not b.finished)
    why: Counter[str] = Counter()
    for block in open_blocks:
        why.update(block.why)
    hours = _gpu_hours(study, blocks, rate)
    unfinished = sum(len(b.todo) for b in blocks)
    sizes = {name: pool.size for name, pool in project.pools.items()}
    infeasible, partial = _expected(project.cells, capacities, sizes)
    return StudyPlan(
        study=project.name,
        cells=len(project.cells),
        finished=len(project.cells) - unfinished,
        to_measure=unfinished,
        partners=sum(b.to_measure for b in open_blocks) - unfinished,
        why=dict(why.most_common()),
        stale=sum(n for reason, n in why.items() if reason in STALE),
        blocks=open_blocks,
        blocks_total=len(blocks),
        gpu_hours=hours,
        left_h=sum(h.left_h for h in hours),
        whole_h=sum(h.whole_h for h in hours),
        times_from=f"{rate.measured_cells} measured cells" if rate.measured_cells else "forecast",
        disk_bytes=sum(2 * cell_bytes(study, c, rate) for c in project.cells),
        files=file_count(blocks),
        expected_infeasible=infeasible,
        expected_partial=partial,
    )


def cell_bytes(study: Study, cell: Cell, rate: Pace | None = None) -> float:
    """Return the forecast size of one raw file, bytes."""
    from specjoule.blocks.estimate import cell_seconds

    scale = rate.by_model_gpu.get((cell.model, cell.gpu), rate.overall) if rate else 1.0
    requests = cell.waves * cell.concurrency
    return (
        ROW_BYTES
        + TRACE_BYTES_S * cell_seconds(study, cell) * scale
        + requests * (REQUEST_BYTES + TOKEN_BYTES * cell.max_new_tokens)
    )


def file_count(blocks: Sequence[BlockProgress]) -> int:
    """Return how many files and folders a study leaves: raw, store (a folder and a file a cell), a block's own."""
    cells = sum(len(b.block.cells) for b in blocks)
    closing = sum(2 * len({c.condition for c in b.block.cells}) for b in blocks)
    launches = sum(len({c.launch_key for c in b.block.cells}) for b in blocks)
    folders = len({c.path.rsplit("/", 1)[0] for b in blocks for c in b.block.cells})
    return 3 * cells + closing + launches + folders + 8 * len(blocks)


def _with_lost_files(project: Project, progress: BlockProgress) -> BlockProgress:
    folder = block_folder(project, progress.block)
    stored = stored_hashes(folder).union(*(stored_hashes(f) for f in relatives(folder.parent, progress.block)))
    wanted = todo(progress.block, progress.state, stored)
    return replace(progress, todo=wanted)


def _planned(study: Study, progress: BlockProgress, rate: Pace) -> PlannedBlock:
    cells = progress.to_measure
    return PlannedBlock(
        block_id=progress.block.id,
        model=progress.block.model,
        gpu=progress.block.gpu,
        cells=len(progress.block.cells),
        to_measure=len(cells),
        launches=len({c.launch_key for c in cells}) + len({c.condition for c in cells}),
        seconds=rate.seconds(study, cells, progress.state.seconds),
        running=progress.holder is not None,
        why=dict(Counter(str(w) for w in progress.todo.values()).most_common()),
    )


def _gpu_hours(study: Study, blocks: Sequence[BlockProgress], rate: Pace) -> tuple[GpuHours, ...]:
    found: dict[tuple[str, str], list[float]] = {}
    for b in blocks:
        sums = found.setdefault((b.block.gpu, b.block.model), [0.0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += rate.seconds(study, b.block.cells, b.state.seconds)
        sums[2] += rate.seconds(study, b.to_measure, b.state.seconds)
    return tuple(
        GpuHours(gpu, model, int(count), whole / 3600, left / 3600)
        for (gpu, model), (count, whole, left) in found.items()
    )


def _capacities(study: Study, cells: Sequence[Cell]) -> dict[str, tuple[int, str | None]] | None:
    found: dict[str, tuple[int, str | None]] = {}
    limits: dict[tuple[Any, ...], int] = {}
    for cell in cells:
        key = (cell.model, cell.gpu, cell.seed, cell.replicate, cell.capture)
        limits[key] = max(limits.get(key, 0), cell.concurrency)
    known: dict[tuple[Any, ...], tuple[int, str | None] | None] = {}
    for cell in cells:
        limit = limits[(cell.model, cell.gpu, cell.seed, cell.replicate, cell.capture)]
        launch = (cell.model, cell.gpu, cell.drafter, cell.capture, cell.max_new_tokens, cell.context_tokens, limit)
        if launch not in known:
            known[launch] = expected_capacity(study, cell, limit)
        capacity = known[launch]
        if capacity is None:
            return None
        found[cell.path] = capacity
    return found


def _expected(
    cells: Sequence[Cell],
    capacities: Mapping[str, tuple[int, str | None]] | None,
    pool_sizes: Mapping[str, int],
) -> tuple[dict[str, int], int | None]:
    infeasible: Counter[str] = Counter()
    partial = 0
    for cell in cells:
        fits, reason = capacities[cell.path] if capacities is not None else (cell.concurrency, None)
        if pool_sizes[cell.corpus] < cell.concurrency:
            infeasible[str(Reason.NOT_ENOUGH_PROMPTS)] += 1
        elif reason is not None and fits < cell.concurrency:
            infeasible[reason] += 1
        elif fits < cell.concurrency:
            partial += 1
    return dict(infeasible), None if capacities is None else partial
