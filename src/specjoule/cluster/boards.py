"""Boards of a workstation: each is lent to one block at a time, whichever checkout the block belongs to."""

from __future__ import annotations

import contextlib
import getpass
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specjoule.blocks.lock import BlockBusy, block_lock

log = logging.getLogger(__name__)
POLL_S = 1.0


def lending_folder() -> Path:
    """Return the host-wide folder of this user's lending locks."""
    return Path(tempfile.gettempdir()) / f"specjoule-boards-{getpass.getuser()}"


def candidates(
    gpu: str, device: str, named: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the boards a block may take, or () where the queue has chosen already.

    On a host processor that is the processor itself: two blocks on it would be in each other's joules. Where the site
    file names no boards, whichever CUDA shows counts as one.
    """
    if "SLURM_JOB_ID" in environment:
        return ()
    if device == "cpu":
        return ("cpu",)
    return tuple(named.get(gpu, ())) or (environment.get("CUDA_VISIBLE_DEVICES") or "any-board",)


@contextlib.contextmanager
def lent_board(
    boards: Sequence[str], folder: Path, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[str | None]:
    """Hold one of `boards` while the body runs, waiting until one is free; yields None where there is no choice.

    Raises BlockBusy when told to stop while waiting.
    """
    if not boards:
        yield None
        return
    waiting = False
    while True:
        for board in boards:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(block_lock(folder / f"{board}.lock"))
                except BlockBusy:
                    continue
                yield board
                return
        if should_stop():
            raise BlockBusy(f"all boards ({', '.join(boards)}) are lent to other blocks; run again to go on")
        if not waiting:
            log.info("waiting for one of %s: all are lent to other blocks", ", ".join(boards))
            waiting = True
        time.sleep(POLL_S)
