"""Opens the meter that a study asks for, or the best that this machine allows, and says why it is not a better one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specjoule.errors import MeterError
from specjoule.meters.base import Calibration
from specjoule.meters.sampled import SampledMeter
from specjoule.meters.sources import SourceSpec
from specjoule.meters.sources.rapl import NATIVE_REFRESH_NS, probe


class MeterSettings(BaseModel):
    """How energy is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["auto", "nvml", "rapl", "estimate"] = "auto"
    """`auto` takes RAPL where it can be read and the estimate elsewhere; a GPU study names `nvml`."""
    poll_ms: float = Field(default=5.0, gt=0, le=1000)
    """How often the counter is read; where a refresh is due it is read every `dense_ms`."""
    dense_ms: float = Field(default=0.5, gt=0, le=100)
    watts_per_core: float = Field(default=10.0, gt=0)
    """Estimate only: watts of one busy core. Assumed, not measured; set it from your CPU's data sheet."""
    powercap_root: Path = Path("/sys/class/powercap")
    board: str | None = None
    """UUID of the board; None: the one that Slurm's or CUDA's variables leave visible."""
    host: bool = False
    """Record RAPL beside the board; leave it off on a node shared with other jobs."""


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
    spec = SourceSpec(
        kind=name,
        poll_ns=round(settings.poll_ms * 1e6),
        dense_ns=round(settings.dense_ms * 1e6),
        board=settings.board,
        powercap_root=str(settings.powercap_root),
        watts_per_core=settings.watts_per_core,
        host=settings.host,
    )
    return SampledMeter(name, spec, _calibration(name, spec), note)


def _calibration(name: Literal["nvml", "rapl", "estimate"], spec: SourceSpec) -> Calibration:
    """RAPL and the estimate have no lag to calibrate: the register counts as it goes, CPU time is the kernel's own."""
    if name == "nvml":
        return Calibration()
    native_ns = NATIVE_REFRESH_NS if name == "rapl" else 0
    return Calibration(lag_ns=0, lag_uncertainty_ns=0, refresh_ns=max(spec.poll_ns, native_ns), calibrated=True)
