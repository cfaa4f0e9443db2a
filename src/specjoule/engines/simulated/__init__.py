"""Simulated boards: an engine and a meter on one virtual clock, behind the contracts of the real ones.

Everything they yield says `simulated`. `docs/simulated-boards.md` says what is modelled and what is assumed.
"""

from __future__ import annotations

from specjoule.clock import VirtualClock
from specjoule.engines.simulated.acceptance import World
from specjoule.engines.simulated.board import SimulatedBoard
from specjoule.engines.simulated.engine import SimulatedEngine, version_with
from specjoule.engines.simulated.faults import parse_faults
from specjoule.engines.simulated.parameters import Parameters, find_parameters, load_parameters
from specjoule.errors import ConfigurationError
from specjoule.meters.simulated import SimulatedMeter
from specjoule.study.catalogue import Gpu
from specjoule.study.model import Study

__all__ = ["SimulatedBoard", "SimulatedEngine", "SimulatedMeter", "open_simulated", "study_parameters", "version_with"]

SETTINGS: dict[str, str] = {
    "parameters": "path of the parameter file, from the study's root (default: config/simulation.yaml)",
    "overrides": "values by section and name that replace the file's, for what-if studies and tests",
    "world_seed": "draws models' texts and drafters' luck anew (default 0); another seed is another simulated world",
    "faults": "list of faults on request (engines.simulated.faults)",
}
"""Keys of `engine.settings`."""


def study_parameters(study: Study) -> Parameters:
    """Return the parameters a study simulates with. Raises ConfigurationError for a key or file that is wrong."""
    settings = study.file.engine.settings
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise ConfigurationError(
            f"engine.settings.{unknown[0]}: unknown key of the simulated engine; valid: {', '.join(SETTINGS)}"
        )
    path = find_parameters(study.root, settings.get("parameters"))
    return load_parameters(path, settings.get("overrides"))


def open_simulated(study: Study, gpu: Gpu, block_seed: str, replicate: int) -> tuple[SimulatedEngine, SimulatedMeter]:
    """Return a simulated engine and the meter that reads its board; `block_seed` and `replicate` draw the board."""
    settings = study.file.engine.settings
    parameters = study_parameters(study)
    seed = int(settings.get("world_seed", 0))
    clock = VirtualClock()
    board = SimulatedBoard(gpu, parameters, clock, f"{seed}/{block_seed}", replicate)
    meter = SimulatedMeter(board, clock, study.file.meter.poll_ms or 5.0)
    faults = parse_faults(settings.get("faults"), f"{seed}/{block_seed}/{replicate}")
    engine = SimulatedEngine(clock, board, world=World(parameters, seed), faults=faults, meter=meter)
    return engine, meter
