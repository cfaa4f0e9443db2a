"""Progress of a block: a live line with ETA on a terminal, plain log lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.estimate import cell_seconds
from specjoule.blocks.runner import Event
from specjoule.study.model import Study


class Eta:
    """Remaining time from the forecast of what is left, scaled by how the forecast did so far."""

    def __init__(self, study: Study, block: Block) -> None:
        self._study = study
        self._mean_s = sum(cell_seconds(study, c) for c in block.cells) / max(1, len(block.cells))
        self._begun = time.monotonic()
        self._forecast_done_s = 0.0

    def finished(self, event: Event) -> float:
        """Count a finished cell; return the remaining seconds."""
        self._forecast_done_s += cell_seconds(self._study, event.cell)
        scale = (time.monotonic() - self._begun) / self._forecast_done_s
        return (event.total - event.done) * self._mean_s * scale


def describe(event: Event) -> str:
    """Return the words for one cell."""
    closing = " (closing)" if event.role == "reference" else ""
    cell = event.cell
    return f"{cell.drafter}{closing} · {cell.corpus} · concurrency {cell.concurrency} · seed {cell.seed}"


def clock_time(seconds: float) -> str:
    """Return seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def watching(study: Study, block: Block) -> Iterator[Callable[[Event], None]]:
    """Yield the function that shows progress on standard error."""
    eta = Eta(study, block)
    if not sys.stderr.isatty():
        yield lambda event: _plain(event, eta)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(block.id, total=None, eta="")

        def show(event: Event) -> None:
            if event.status:
                bar.update(task, eta=f"ETA {clock_time(eta.finished(event))}")
            bar.update(task, total=event.total, completed=event.done, description=describe(event))

        yield show


def _plain(event: Event, eta: Eta) -> None:
    if event.status is None:
        return
    left = clock_time(eta.finished(event))
    verdict = event.status if event.validity in (None, "valid", "not_measured") else f"{event.status}, {event.validity}"
    print(
        f"[{event.done}/{event.total}] {describe(event)}: {verdict}; {left} left in this block",
        file=sys.stderr,
        flush=True,
    )
