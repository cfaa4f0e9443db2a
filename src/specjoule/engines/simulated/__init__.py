"""Simulated boards: an engine and a meter on one virtual clock, behind the contracts of the real ones.

Everything they yield says `simulated`. `docs/simulated-boards.md` says what is modelled and what is assumed.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt

from specjoule.clock import VirtualClock
from specjoule.engines.checking import checked
from specjoule.engines.simulated.acceptance import World
from specjoule.engines.simulated.board import SimulatedBoard
from specjoule.engines.simulated.engine import SimulatedEngine, version_with
from specjoule.engines.simulated.faults import parse_faults
from specjoule.engines.simulated.parameters import Parameters, find_parameters, load_parameters
from specjoule.engines.simulated.physics import Physics
from specjoule.meters.simulated import SimulatedMeter
from specjoule.study.catalogue import Gpu
from specjoule.study.model import Study

__all__ = [
    "SimulatedBoard", "SimulatedEngine", "SimulatedMeter", "check_study", "open_simulated", "study_parameters",
    "version_with",
]  # fmt: skip


class Settings(BaseModel):
    """`engine.settings` of a simulated study."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: str | None = None
    """Path of the parameter file, from the study's root (default: config/simulation.yaml)."""
    overrides: dict[str, dict[str, Any]] = {}
    """Values by section and name that replace the file's, for what-if studies and tests."""
    world_seed: StrictInt = 0
    """Draws models' texts and drafters' luck anew: another seed is another simulated world."""
    faults: Any = None
    """List of faults on request (`faults`)."""


def study_settings(study: Study) -> Settings:
    """Return a study's settings. Raises ConfigurationError naming a key that is wrong."""
    return checked(Settings, study.file.engine.settings, "engine.settings.")


def study_parameters(study: Study) -> Parameters:
    """Return the parameters a study simulates with. Raises ConfigurationError for a key or file that is wrong."""
    settings = study_settings(study)
    return load_parameters(find_parameters(study.root, settings.parameters), settings.overrides)


def check_study(study: Study) -> None:
    """Refuse, before any job starts, what a block would refuse: settings, parameters, faults and boards."""
    parameters = study_parameters(study)
    parse_faults(study_settings(study).faults, "")
    for gpu in study.gpus.values():
        Physics(gpu, parameters.board, parameters.kernels)


def open_simulated(study: Study, gpu: Gpu, block_seed: str, replicate: int) -> tuple[SimulatedEngine, SimulatedMeter]:
    """Return a simulated engine and the meter that reads its board; `block_seed` and `replicate` draw the board."""
    settings, parameters = study_settings(study), study_parameters(study)
    seed = settings.world_seed
    clock = VirtualClock()
    board = SimulatedBoard(gpu, parameters, clock, f"{seed}/{block_seed}", replicate)
    meter = SimulatedMeter(board, clock, study.file.meter.poll_ms or 5.0)
    faults = parse_faults(settings.faults, f"{seed}/{block_seed}/{replicate}")
    engine = SimulatedEngine(clock, board, world=World(parameters, seed), faults=faults, meter=meter)
    return engine, meter
