"""Opens the engine and the meters that a study names: the one place that knows their classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specjoule.clock import VirtualClock
from specjoule.engines.base import Engine
from specjoule.errors import ConfigurationError
from specjoule.meters.base import Meter
from specjoule.study.catalogue import Gpu
from specjoule.study.model import Study


@dataclass(frozen=True)
class Devices:
    """What one block is measured with."""

    engine: Engine
    meter: Meter
    host_meter: Meter | None = None
    note: str | None = None
    """Why a better meter could not be had, and how to allow it."""


def open_devices(study: Study, gpu: Gpu, block_id: str, replicate: int, board: str | None = None) -> Devices:
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

        return _with_real_meter(study, ReferenceEngine(), board)
    if name == "sglang":
        from specjoule.engines.sglang import SglangEngine

        return _with_real_meter(study, SglangEngine(), board)
    raise ConfigurationError(f"engine.name: '{name}' is not built yet; choose reference, sglang, simulated or scripted")


def _with_real_meter(study: Study, engine: Engine, board: str | None) -> Devices:
    from specjoule.meters.factory import MeterSettings, open_meter

    config = study.file.meter
    if config.name == "simulated":
        raise ConfigurationError(
            "meter.name: 'simulated' goes with a simulated engine only; choose auto, nvml, rapl or estimate"
        )
    main = open_meter(
        MeterSettings(
            name=config.name,
            poll_ms=config.poll_ms,
            watts_per_core=config.watts_per_core,
            powercap_root=Path(config.powercap_root),
            board=board,
            host=config.host in ("rapl", "auto"),
        )
    )
    return Devices(engine, main, None, main.note)
