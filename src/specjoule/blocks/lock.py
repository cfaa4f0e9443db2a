"""One runner per block: a lock file made with O_EXCL, which works where flock and hard links do not.

The file names its holder (host, process, its start time, boot). A lock whose holder is shown to be gone is broken; one
held on another host is broken only when its heartbeat has been silent for `STALE_S`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specjoule.errors import SpecJouleError, StoreError
from specjoule.processes import boot_id, process_start

STALE_S = 180.0
HEARTBEAT_S = 20.0
GATE_STALE_S = 10.0


class BlockBusy(SpecJouleError):
    """Another live runner holds the block."""


@contextlib.contextmanager
def block_lock(path: Path) -> Iterator[None]:
    """Hold the lock at `path`; raises BlockBusy with the holder's name if another live runner has it.

    Raises StoreError where no lock can be made: no permission, no space, a file in a folder's place.
    """
    me = {
        "host": socket.gethostname(), "pid": os.getpid(), "start": process_start(os.getpid()), "boot": boot_id(),
        "job": os.environ.get("SLURM_JOB_ID"), "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }  # fmt: skip
    token = json.dumps(me).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unlockable(path, error) from error
    while True:
        try:
            _create(path, token)
            break
        except FileExistsError:
            holder = _holder(path)
            if holder is not None and _alive(holder, path):
                raise BlockBusy(
                    f"{path}: the block is being measured by process {holder.get('pid')} on {holder.get('host')}; "
                    "wait for it, or end it, and run again"
                ) from None
            try:
                _break(path)
            except OSError as error:
                raise _unlockable(path, error) from error
        except OSError as error:
            raise _unlockable(path, error) from error
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, stop), daemon=True)
    heart.start()
    try:
        yield
    finally:
        stop.set()
        heart.join()
        with contextlib.suppress(OSError):
            if path.read_bytes() == token:
                path.unlink()


def _create(path: Path, token: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(fd, token)
        os.fsync(fd)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _unlockable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path}: the block cannot be locked ({error.strerror or error}); check the folder, its permissions and the "
        "disk, and run again"
    )


def held_by(path: Path) -> dict[str, Any] | None:
    """Return who holds the lock at `path` (host, pid, ...) if that runner lives as far as can be told; else None."""
    holder = _holder(path)
    return holder if holder is not None and _alive(holder, path) else None


def _holder(path: Path) -> dict[str, Any] | None:
    """Return what the lock says of its holder; None without a lock, empty where it names nobody.

    Such a lock was made a moment ago and is not filled yet, or was torn by a kill: it is judged by its age alone.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if _names_a_holder(value) else {}


def _names_a_holder(value: Any) -> bool:
    """Say whether a lock's content names its holder."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("host"), str)
        and isinstance(value.get("pid"), int)
        and all(isinstance(value.get(name), str | None) for name in ("start", "boot", "job", "restart"))
    )


def _alive(holder: dict[str, Any], path: Path) -> bool:
    try:
        age_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    if holder.get("job") is not None and holder["job"] == os.environ.get("SLURM_JOB_ID") and _before(holder):
        return False  # an earlier run of this very job, which Slurm has ended and put back into the queue
    if holder.get("host") == socket.gethostname():
        if holder.get("boot") != boot_id():
            return False
        return process_start(int(holder["pid"])) == holder.get("start")
    if not holder:
        return age_s < 5.0
    return age_s < STALE_S


def _before(holder: dict[str, Any]) -> bool:
    """Say whether the holder ran before Slurm put this job back into the queue for the last time."""
    return bool(holder.get("restart") != os.environ.get("SLURM_RESTART_COUNT", "0"))


def _break(path: Path) -> None:
    """Take a dead lock away.

    Under a second O_EXCL file and after a second look: otherwise of two runners that both found the lock dead, the
    slower one would take away the lock that the faster one has just made.
    """
    gate = path.with_name(f"{path.name}.breaking")
    try:
        os.close(os.open(gate, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - gate.stat().st_mtime > GATE_STALE_S:
                gate.unlink()
        time.sleep(0.05)
        return
    try:
        holder = _holder(path)
        if holder is not None and not _alive(holder, path):
            path.unlink(missing_ok=True)
    finally:
        gate.unlink(missing_ok=True)


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(path)
