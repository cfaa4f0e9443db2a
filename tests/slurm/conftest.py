from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemons import FOLDER_VARIABLE, LANES, Lane, LocalSlurm, missing_programs, wait_until


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSlurm]:
    """The host's own small Slurm: the one that `run.py` started, or one for this session alone."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        yield LocalSlurm(Path(named))
        return
    missing = missing_programs()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make test-slurm installs them)")
    local = LocalSlurm(Path(tmp_path_factory.mktemp("hut")))
    try:
        local.start()
        yield local
    finally:
        local.stop()


@pytest.fixture
def lane(slurm: LocalSlurm) -> Iterator[Lane]:
    """One node and its board, for this test alone; nothing of it is left in the queue."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    mine = LANES[int(worker.removeprefix("gw")) % len(LANES)]
    yield mine
    left = [job for job, (_, rule) in slurm.jobs(mine.node).items() if rule]
    if left:
        slurm.call("scancel", *left, check=False)
        wait_until(lambda: not slurm.jobs(mine.node), 40, "an empty queue")
