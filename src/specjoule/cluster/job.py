"""One block's job: its board, its deadline, its hooks; and what happens when it has to stop early."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from specjoule.blocks.block import Block
from specjoule.blocks.lock import BlockBusy
from specjoule.blocks.runner import BlockFailed, Event, Folders, measure_block
from specjoule.cluster import queue
from specjoule.cluster.boards import candidates, lending_folder, lent_board
from specjoule.cluster.stopping import Stopper
from specjoule.study.model import VIRTUAL_ENGINES
from specjoule.workflow import Project

log = logging.getLogger(__name__)
INTERRUPTED = 130
STOPPED = 75
"""Exit code of a block that stopped before its time limit: nothing is wrong, something is left (EX_TEMPFAIL)."""
ENDED_BY_SLURM_S = 180.0
HOLDER_S = 1.0
"""How often a block that another runner measures is asked for: a job outlives a Snakemake that was killed, and the next
one's job for the same block finds everything done when it ends."""


def run_block(project: Project, block: Block) -> int:
    """Measure what the block lacks and write its record; returns the exit code. Raises SpecJouleError."""
    site = project.site
    left = queue.seconds_left(os.environ, time.time())
    stopper = Stopper(None if left is None else time.time() + left, site.limits.stop_minutes * 60)
    stopper.listen()
    try:
        finished = _measure(project, block, stopper)
    except KeyboardInterrupt:
        print("interrupted: finished cells are kept; run again to go on", file=sys.stderr)
        return INTERRUPTED
    finally:
        _hook(site.hooks.after)
    if finished is None:
        return 0
    log.warning("%s: stopped with cells left (%s)", block.id, stopper.reason)
    if site.requeue and finished > 0 and queue.requeue():
        print(f"block {block.id}: {stopper.reason}; back in the queue to go on", file=sys.stderr)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(ENDED_BY_SLURM_S)
    else:
        print(f"block {block.id}: {stopper.reason}; run again to go on", file=sys.stderr)
    return STOPPED


def _measure(project: Project, block: Block, stopper: Stopper) -> int | None:
    """Measure; None when the block is complete, else how many cells were finished before it was told to stop."""
    from specjoule.blocks.devices import Devices, open_devices
    from specjoule.blocks.record import block_record
    from specjoule.blocks.store import BlockStore
    from specjoule.cli.progress import watching
    from specjoule.files import write_json

    gpu = project.study.gpus[block.gpu]
    virtual = project.study.file.engine.name in VIRTUAL_ENGINES  # each block has boards of its own, none is lent
    boards = () if virtual else candidates(block.gpu, gpu.device, project.site.boards, os.environ)
    folders = Folders(project.raw, project.store, project.cache, project.logs)
    clocks = project.site.clocks
    commands = (clocks.lock, clocks.unlock) if clocks.lock else None
    finished = 0
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(watching(project.study, block))

        def opened() -> Devices:
            board = stack.enter_context(lent_board(boards, lending_folder(), stopper))
            own = board if board in project.site.boards.get(block.gpu, ()) else None
            return open_devices(project.study, gpu, block.id, block.replicate, own, commands)

        def counted(event: Event) -> None:
            nonlocal finished
            finished += event.status is not None
            watch(event)

        waiting = False
        try:
            while True:
                try:
                    measure_block(project.study, block, folders, opened, watch=counted, should_stop=stopper)
                    break
                except BlockBusy as error:
                    if stopper():
                        raise
                    if not waiting:
                        waiting = True
                        print(f"{error}. Waiting for it.", file=sys.stderr)
                    time.sleep(HOLDER_S)
        except BlockFailed as error:
            if stopper.reason is None:
                raise
            log.info("%s", error)
            return finished
    write_json(
        project.record(block.id),
        block_record(block, BlockStore(project.store, project.name, block.id), project.study.file.validity),
    )
    return None


def _hook(command: str | None) -> None:
    if command:
        subprocess.run(["bash", "-c", command], check=False, timeout=300, cwd=Path.cwd())
