"""Is the board free? Asked before each start: a scheduler that outlived its server holds memory and spoils energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

BoardProcesses = Callable[[str], tuple[int, ...]]
"""Returns the ids of the compute processes on the board of a UUID."""


def compute_processes(uuid: str) -> tuple[int, ...]:
    """Return the ids of the compute processes on a board, by NVIDIA's library; empty where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return tuple(sorted(p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    except pynvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def wait_until_free(
    uuid: str, timeout_s: float, processes: BoardProcesses = compute_processes, poll_s: float = 0.5
) -> tuple[int, ...]:
    """Wait until no compute process is on the board; return those still there when the time is over (none: free)."""
    deadline = time.monotonic() + timeout_s
    while (left := processes(uuid)) and time.monotonic() < deadline:
        time.sleep(poll_s)
    return left
