"""Opens the meter that a study asks for, or the best that this machine allows, and says why it is not a better one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specjoule.errors import MeterError
from specjoule.meters.base import Calibration
from specjoule.meters.sampled import SampledMeter
from specjoule.meters.sources import SourceSpec
from specjoule.meters.sources.rapl import NATIVE_REFRESH_NS, probe
from specjoule.reasons import Reason

_POLL_MS = {"nvml": 5.0, "rapl": 20.0, "estimate": 20.0}


class MeterSettings(BaseModel):
    """How energy is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["auto", "nvml", "rapl", "estimate"] = "auto"
    """`auto` takes RAPL where it can be read and the estimate elsewhere; a GPU study names `nvml`."""
    poll_ms: float | None = Field(default=None, gt=0, le=1000)
    """How often the counter is read; default 5 ms for a board, whose counter jumps, and 20 ms for counters that move by
    themselves. Where a refresh is due it is read every `dense_ms`."""
    dense_ms: float = Field(default=0.5, gt=0, le=100)
    watts_per_core: float = Field(default=10.0, gt=0)
    """Estimate only: watts of one busy core. Assumed, not measured; set it from your CPU's data sheet."""
    powercap_root: Path = Path("/sys/class/powercap")
    board: str | None = None
    """UUID of the board; None: the one that Slurm's or CUDA's variables leave visible."""
    host: bool = False
    """Record RAPL beside the board, where it can be read and the node is not shared with other jobs."""


def open_meter(settings: MeterSettings) -> SampledMeter:
    """Return the meter, not yet started; `meter.note` says why a better one could not be had. Raises MeterError."""
    name: Literal["nvml", "rapl", "estimate"] = "rapl" if settings.name == "auto" else settings.name
    note = None
    if name == "rapl":
        problem = probe(settings.powercap_root).problem
        if problem is not None and settings.name == "rapl":
            raise MeterError(problem)
        if problem is not None:
            name = "estimate"
            note = (
                f"{problem} Until then energy is estimated from CPU time at {settings.watts_per_core:g} W per busy"
                " core, not measured."
            )
    host = settings.host and name == "nvml"
    if host and (problem := host_problem(settings.powercap_root, os.environ)) is not None:
        host, note = False, problem
    spec = SourceSpec(
        kind=name,
        poll_ns=round((settings.poll_ms or _POLL_MS[name]) * 1e6),
        dense_ns=round(settings.dense_ms * 1e6),
        board=settings.board,
        powercap_root=str(settings.powercap_root),
        watts_per_core=settings.watts_per_core,
        host=host,
    )
    return SampledMeter(name, spec, _calibration(name, spec), note)


def host_problem(powercap_root: Path, environment: Mapping[str, str]) -> str | None:
    """Return why the host's energy cannot be told here; None where it can."""
    if is_shared(environment, os.cpu_count() or 1):
        return (
            f"Host energy is not recorded ({Reason.SHARED_NODE}): this job has only a part of the node, whose packages"
            " count all jobs; ask Slurm for the whole node (`--exclusive`)."
        )
    problem = probe(powercap_root).problem
    return None if problem is None else f"Host energy is not recorded. {problem}"


def is_shared(environment: Mapping[str, str], n_cpus: int) -> bool:
    """Return whether other jobs may run on this node: a Slurm job that was not given all its processors."""
    if "SLURM_JOB_ID" not in environment:
        return False
    given = environment.get("SLURM_CPUS_ON_NODE", "")
    return not given.isdigit() or int(given) < n_cpus


def _calibration(name: Literal["nvml", "rapl", "estimate"], spec: SourceSpec) -> Calibration:
    """RAPL and the estimate have no lag to calibrate: the register counts as it goes, CPU time is the kernel's own."""
    if name == "nvml":
        return Calibration()
    native_ns = NATIVE_REFRESH_NS if name == "rapl" else 0
    return Calibration(lag_ns=0, lag_uncertainty_ns=0, refresh_ns=max(spec.poll_ns, native_ns), calibrated=True)
