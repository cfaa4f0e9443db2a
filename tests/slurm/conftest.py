from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
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
def lane(slurm: LocalSlurm, tmp_path: Path) -> Iterator[Lane]:
    """One node and its board, for this test alone; nothing that it submitted is left in the queue."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    yield LANES[int(worker.removeprefix("gw")) % len(LANES)]
    left = slurm.jobs_below(tmp_path)
    if left:
        slurm.call("scancel", *left, check=False)
        wait_until(lambda: not slurm.jobs_below(tmp_path), 40, "an empty queue")
    # A node that "failed" leaves its job's processes behind: no daemon is left there to end them.
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in word for word in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                process.kill()
