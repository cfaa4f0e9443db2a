"""`specjoule status`: how far a study is, from its journals and block records, while it runs or after."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specjoule.blocks.progress import BlockProgress, pace, read_progress
from specjoule.blocks.record_file import read_record
from specjoule.blocks.todo import STALE, Why
from specjoule.blocks.usage import Usage
from specjoule.cells.cell import Cell
from specjoule.files import RUN_AGAIN
from specjoule.reasons import Reason
from specjoule.study.model import ValidityConfig
from specjoule.windows.drift import Drifts, beyond_limit, drifts_of
from specjoule.workflow import Project

DONE, RUNNING, STALE_CELL, INFEASIBLE, PARTIAL, INVALID, FAILED, MISSING = STATES = (
    "done", "running", "stale", "infeasible", "partial", "invalid", "failed", "missing",
)  # fmt: skip
"""States of a cell; each cell is in one. `done`: finished, valid, at the concurrency asked for."""


@dataclass(frozen=True)
class StatusRow:
    """Cells of one model and drafter by state."""

    model: str
    drafter: str
    cells: int
    counts: dict[str, int]


@dataclass(frozen=True)
class RunningCell:
    """What a live runner is measuring."""

    block_id: str
    host: str | None
    path: str | None
    since_s: float | None
    """Seconds since the cell was started."""


@dataclass(frozen=True)
class StudyStatus:
    """How far a study is."""

    study: str
    cells: int
    counts: dict[str, int]
    rows: tuple[StatusRow, ...]
    reasons: dict[str, dict[str, int]]
    """By state, how often each reason was given."""
    running: tuple[RunningCell, ...]
    blocks: int
    blocks_finished: int
    left_s: float
    """Board time that is left, s."""
    eta_s: float | None
    """Time until the end with as many boards as run now (one, if none does); None when nothing is left."""
    measured_cells: int
    """Cells whose measured times the estimate stands on; 0: it is the forecast alone."""
    last_error: str | None
    usage: Usage
    """Where the boards' time went so far: server starts, warm-up and settling, windows."""

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain JSON values."""
        return {**asdict(self), "usage": self.usage.to_dict()}


def study_status(project: Project, now: float | None = None) -> StudyStatus:
    """Read the study's journals and records and count. Raises ConfigurationError, StoreError."""
    records = {block.id: project.record(block.id) for block in project.blocks}
    drifts = {name: drifts_of(read_record(path, RUN_AGAIN)) for name, path in records.items() if path.is_file()}
    return status_of(project, read_progress(project), time.time() if now is None else now, drifts)


def status_of(
    project: Project, blocks: Sequence[BlockProgress], now: float, drifts: Mapping[str, Drifts]
) -> StudyStatus:
    """Return the status from journals already read; a pure function of its arguments.

    `drifts`: by block name, those of the blocks that have a record.
    """
    rules = project.study.file.validity
    per_row: dict[tuple[str, str], Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    running: list[RunningCell] = []
    errors: list[tuple[float, str]] = []
    for progress in blocks:
        current = _running(progress, now)
        if current is not None:
            running.append(current)
        for cell in progress.block.cells:
            drifted = _drifted(cell, progress, drifts.get(progress.block.id, {}), rules)
            state, why = _state_of(cell, progress, current.path if current else None, drifted)
            per_row.setdefault((cell.model, cell.drafter), Counter())[state] += 1
            for reason in why:
                reasons.setdefault(state, Counter())[reason] += 1
        error = progress.state.last_error
        if error is not None:
            errors.append((float(error.get("time", 0)), f"{progress.block.id}: {error.get('message')}"))
    total: Counter[str] = Counter()
    for counts in per_row.values():
        total.update(counts)
    rate = pace(project.study, blocks)
    left = sum(rate.seconds(project.study, b.to_measure, b.state.seconds) for b in blocks if not b.finished)
    return StudyStatus(
        study=project.name,
        cells=sum(total.values()),
        counts=_all_states(total),
        rows=tuple(StatusRow(m, d, sum(c.values()), _all_states(c)) for (m, d), c in per_row.items()),
        reasons={state: dict(reasons[state].most_common()) for state in STATES if state in reasons},
        running=tuple(running),
        blocks=len(blocks),
        blocks_finished=sum(b.finished for b in blocks),
        left_s=left,
        eta_s=left / max(1, len(running)) if left else None,
        measured_cells=rate.measured_cells,
        last_error=max(errors)[1] if errors else None,
        usage=sum((b.usage for b in blocks), Usage()),
    )


def _all_states(counts: Mapping[str, int]) -> dict[str, int]:
    return {state: counts.get(state, 0) for state in STATES}


def _running(progress: BlockProgress, now: float) -> RunningCell | None:
    if progress.holder is None:
        return None
    event = progress.state.running
    return RunningCell(
        block_id=progress.block.id,
        host=progress.holder.get("host"),
        path=event.get("path") if event else None,
        since_s=max(0.0, now - float(event["time"])) if event and "time" in event else None,
    )


def _drifted(cell: Cell, progress: BlockProgress, drifts: Drifts, rules: ValidityConfig) -> bool:
    """Say whether the board drifted too far in the segment of the cell's newest finished attempt."""
    event = progress.state.finished.get(cell.hash, {})
    return beyond_limit(drifts.get((str(event.get("segment_id")), cell.capture, cell.locked_mhz)), rules)


def _state_of(cell: Cell, progress: BlockProgress, running: str | None, drifted: bool) -> tuple[str, list[str]]:
    """Return a cell's state and the reasons given for it."""
    if cell.path == running:
        return RUNNING, []
    why = progress.todo.get(cell.path)
    if why is not None:
        return _unfinished(why, progress.state.failed.get(cell.hash))
    return _finished(progress.state.finished[cell.hash], drifted)


def _unfinished(why: Why, failure: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    if why in STALE:
        return STALE_CELL, [str(why)]
    if why is Why.FAILED and failure is not None:
        return FAILED, [str(failure.get("reason"))]
    return MISSING, []


def _finished(event: Mapping[str, Any], drifted: bool) -> tuple[str, list[str]]:
    if event.get("status") == "infeasible":
        return INFEASIBLE, [str(event.get("reason"))]
    own = [str(r) for r in event.get("validity_reasons") or ["unknown"]] if event.get("validity") == "invalid" else []
    against = own + ([str(Reason.BLOCK_DRIFT)] if drifted else [])
    if against:
        return INVALID, against
    if event.get("status") == "partial":
        return PARTIAL, [str(event.get("reason") or "capacity")]
    return DONE, []
