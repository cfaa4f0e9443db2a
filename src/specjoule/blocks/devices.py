"""Opens the engine and the meters that a study names: the one place that knows their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specjoule.clock import VirtualClock
from specjoule.engines.base import Engine, EngineInfeasible
from specjoule.engines.versions import installed_version
from specjoule.errors import ConfigurationError
from specjoule.meters.base import Meter
from specjoule.reasons import Reason
from specjoule.study.catalogue import Gpu
from specjoule.study.model import Study

LockedClock = Callable[[str | None, int | None], AbstractContextManager[None]]


def _no_lock(uuid: str | None, mhz: int | None) -> AbstractContextManager[None]:
    """Leave the clock alone: simulated boards are told by the launch, processors cannot be."""
    return nullcontext()


ClockCommands = tuple[Sequence[str], Sequence[str]]
"""A site's own commands that lock and unlock a clock."""


@contextmanager
def _nvml_lock(commands: ClockCommands | None, uuid: str | None, mhz: int | None) -> Iterator[None]:
    """Lock a board's clock through its driver or the site's tool.

    Raises EngineInfeasible where the driver or the tool does not let us.
    """
    if mhz is None:
        yield
        return
    from specjoule.meters.clocks import ClockHooks, ClockLock

    hooks = ClockHooks(tuple(commands[0]), tuple(commands[1])) if commands is not None else None
    if uuid is None:
        raise EngineInfeasible(Reason.NOT_REPORTED, f"the clock cannot be locked at {mhz} MHz: the board has no UUID")
    with ClockLock(uuid, mhz, hooks) as outcome:
        if outcome.reason is not None:
            raise EngineInfeasible(outcome.reason, outcome.message or f"the clock was not locked at {mhz} MHz")
        yield


@dataclass(frozen=True)
class Devices:
    """What one block is measured with."""

    engine: Engine
    meter: Meter
    note: str | None = None
    """Why a better meter could not be had, and how to allow it."""
    locked_clock: LockedClock = _no_lock
    """Context in which the board's clock is locked; given back on the way out, whatever happens inside."""


def open_devices(
    study: Study,
    gpu: Gpu,
    block_id: str,
    replicate: int,
    board: str | None = None,
    clock_commands: ClockCommands | None = None,
) -> Devices:
    """Return engine and meters for one block, not yet started. Raises ConfigurationError or MeterError."""
    name = study.file.engine.name
    if name == "scripted":
        from specjoule.engines.scripted import ScriptedBoard, ScriptedEngine, ScriptedMeter

        clock = VirtualClock()
        scripted = ScriptedBoard(clock)
        return Devices(ScriptedEngine(scripted, clock), ScriptedMeter(scripted))
    if name == "simulated":
        from specjoule.engines.simulated import open_simulated

        engine, meter = open_simulated(study, gpu, block_id, replicate)
        return Devices(engine, meter)
    if name == "reference":
        from specjoule.engines.reference import ReferenceEngine

        _refuse_other_release(study)
        return _with_real_meter(study, ReferenceEngine(), gpu, board, clock_commands)
    if name == "sglang":
        from specjoule.engines.sglang.engine import SglangEngine

        return _with_real_meter(study, SglangEngine(), gpu, board, clock_commands)
    raise ConfigurationError(f"engine.name: '{name}' is not built yet; choose reference, sglang, simulated or scripted")


def _refuse_other_release(study: Study) -> None:
    """Refuse to measure cells hashed with a pinned release by whatever is installed in its place."""
    pinned, installed = study.file.engine.version, installed_version(study.file.engine.name)
    if pinned not in (None, installed):
        raise ConfigurationError(
            f"engine.version: pins {pinned}, but {installed} is installed here and would compute; install the pinned "
            "release, or leave the key out"
        )


def _with_real_meter(
    study: Study, engine: Engine, gpu: Gpu, board: str | None, clock_commands: ClockCommands | None
) -> Devices:
    from specjoule.meters.factory import MeterSettings, open_meter

    config = study.file.meter
    # On a GPU `auto` is the board's own counter or nothing: the processor's joules are not its.
    name = "nvml" if gpu.device == "cuda" and config.name == "auto" else config.name
    if name == "simulated":
        raise ConfigurationError("meter.name: 'simulated' goes with a simulated engine only")
    main = open_meter(
        MeterSettings(
            name=name,
            poll_ms=config.poll_ms,
            watts_per_core=config.watts_per_core,
            powercap_root=Path(config.powercap_root),
            board=board,
            host=config.host in ("rapl", "auto"),
        )
    )
    lock = partial(_nvml_lock, clock_commands) if main.name == "nvml" else _no_lock
    return Devices(engine, main, main.note, lock)
