"""Locked clocks: set, read back and given back in every case, also when the process that set them was killed.

A mark is written before the clocks are set and removed after they are restored. Whoever finds a mark whose owner is
gone restores the clocks: the sampler when its parent has died, else the next start on that board.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pynvml

from specjoule.errors import MeterError
from specjoule.meters import nvml
from specjoule.meters.base import Samples
from specjoule.meters.sources import ReadFault
from specjoule.meters.state import read_json, state_directory, write_json
from specjoule.processes import boot_id, process_start
from specjoule.reasons import Reason

_TOLERANCE_MHZ = 15.0
"""One step of NVIDIA's clock table: a request between two steps runs at one of them."""
_READ_BACK_S = 1.0
_HOOK_S = 120.0


@dataclass(frozen=True)
class ClockHooks:
    """A site's own commands where only an administrator's tool may set clocks.

    They run with SPECJOULE_BOARD (UUID) and, before, SPECJOULE_MHZ in their environment; a status other than 0 counts
    as *no permission*.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class LockOutcome:
    """What came of a request for locked clocks."""

    requested_mhz: int
    read_back_mhz: int | None
    """SM clock that the board showed afterwards; an idle board may show less, `clock_flags` judges under load."""
    reason: Reason | None = None
    message: str | None = None


class ClockLock:
    """Context that locks a board's SM clock and restores it on the way out, whatever happens inside."""

    def __init__(self, uuid: str, mhz: int, hooks: ClockHooks | None = None, directory: Path | None = None) -> None:
        self._uuid = uuid
        self._mhz = mhz
        self._hooks = hooks
        self._directory = directory or mark_directory()
        self._mark = mark_path(self._directory, uuid)
        self._marked = False

    def __enter__(self) -> LockOutcome:
        """Lock the clock; what went wrong is in the outcome. Raises MeterError where another live process holds it."""
        nvml.initialise()
        try:
            restore_stale(self._directory, [self._uuid])
            if self._mark.exists():
                raise MeterError(
                    f"Another process has locked the clocks of {self._uuid} (see {self._mark}); wait for it to end."
                )
            write_json(self._mark, _mark_content(self._uuid, self._mhz, self._hooks))
            self._marked = True
            return self._lock()
        except BaseException:
            self._release()
            raise

    def _lock(self) -> LockOutcome:
        try:
            handle = nvml.by_uuid(self._uuid)
            if self._hooks is not None:
                _run_hook(self._hooks.before, self._uuid, self._mhz)
            else:
                nvml.call(pynvml.nvmlDeviceSetGpuLockedClocks, handle, self._mhz, self._mhz)
        except ReadFault as fault:
            return LockOutcome(self._mhz, None, fault.reason, _remedy(fault))
        shown = _read_back(handle, self._mhz)
        return LockOutcome(self._mhz, shown)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the clocks."""
        self._release()

    def _release(self) -> None:
        if self._marked:
            content = read_json(self._mark)
            if content is not None:
                _restore(content, self._mark)
            self._marked = False
        nvml.shut_down()


def mark_directory() -> Path:
    """Return where the marks of locked clocks lie."""
    return state_directory() / "locked-clocks"


def mark_path(directory: Path, uuid: str) -> Path:
    """Return the mark of a board; a home directory may be shared by many nodes, so the host is in the name."""
    return directory / f"{socket.gethostname()}--{uuid}.json"


def restore_stale(directory: Path | None = None, boards: Sequence[str] | None = None) -> list[str]:
    """Restore the clocks of every board whose locker is gone; return their UUIDs. The driver must be initialised."""
    base = directory or mark_directory()
    restored = []
    for path in sorted(base.glob(f"{socket.gethostname()}--*.json")):
        content = read_json(path)
        if content is None:
            continue
        uuid = str(content.get("uuid"))
        if boards is not None and uuid not in boards:
            continue
        if content.get("boot_id") != boot_id():  # locked clocks do not survive a reboot
            path.unlink(missing_ok=True)
        elif process_start(int(content["pid"])) != content.get("started") and _restore(content, path):
            restored.append(uuid)
    return restored


def clock_flags(sm_clock: Samples | None, start_ns: int, end_ns: int, locked_mhz: int | None) -> tuple[Reason, ...]:
    """Return *not obeyed* where the median SM clock of a window is not the locked one.

    The median and not the extremes: a single sample between two kernels says nothing. A board held down by its power or
    thermal limit is not obeying either; the throttle bits say why.
    """
    if locked_mhz is None or sm_clock is None:
        return ()
    inside = sm_clock.value[(sm_clock.t_ns >= start_ns) & (sm_clock.t_ns <= end_ns)]
    if len(inside) == 0:
        return ()
    return (Reason.CLOCK_NOT_OBEYED,) if abs(float(np.median(inside)) - locked_mhz) > _TOLERANCE_MHZ else ()


def _mark_content(uuid: str, mhz: int, hooks: ClockHooks | None) -> dict[str, Any]:
    pid = os.getpid()
    return {
        "uuid": uuid,
        "mhz": mhz,
        "pid": pid,
        "started": process_start(pid),
        "boot_id": boot_id(),
        "after": None if hooks is None else list(hooks.after),
    }


def _restore(content: Mapping[str, Any], mark: Path) -> bool:
    """Undo what a mark stands for and remove it; a mark stays where that failed, for the next one to try."""
    try:
        if content.get("after") is not None:
            _run_hook(tuple(content["after"]), str(content["uuid"]), None)
        else:
            nvml.call(pynvml.nvmlDeviceResetGpuLockedClocks, nvml.by_uuid(str(content["uuid"])))
    except ReadFault as fault:
        if fault.reason is not Reason.NO_PERMISSION or content.get("after") is not None:
            return False
        # Who may not reset may not have set either.
    mark.unlink(missing_ok=True)
    return True


def _run_hook(command: tuple[str, ...], uuid: str, mhz: int | None) -> None:
    environment = {**os.environ, "SPECJOULE_BOARD": uuid}
    if mhz is not None:
        environment["SPECJOULE_MHZ"] = str(mhz)
    try:
        done = subprocess.run(command, env=environment, timeout=_HOOK_S, capture_output=True, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReadFault(Reason.NO_PERMISSION, f"the clock hook {command[0]} failed ({error})") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise ReadFault(Reason.NO_PERMISSION, f"the clock hook {command[0]} failed ({said[0]})")


def _read_back(handle: nvml.Handle, mhz: int) -> int | None:
    deadline = time.monotonic() + _READ_BACK_S
    while True:
        shown = nvml.optional(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
        if shown is None or abs(shown - mhz) <= _TOLERANCE_MHZ or time.monotonic() > deadline:
            return None if shown is None else int(shown)
        time.sleep(0.05)


def _remedy(fault: ReadFault) -> str:
    if fault.reason is Reason.NO_PERMISSION:
        return (
            f"The clocks may not be locked by this user ({fault}); run as root, ask for Slurm's `--gpu-freq`, or name"
            " the site's tool in `clocks.lock` of config/site.yaml."
        )
    return f"The clocks could not be locked ({fault})."
