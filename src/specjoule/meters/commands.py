"""Commands of the meter for use alone: `meter record`, `meter integrate`, `meter import`, and `check`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specjoule.errors import MeterError, SpecJouleError
from specjoule.meters.base import BOARD, PROVENANCE, BoardInfo
from specjoule.meters.calibration_store import load_calibration, save_calibration
from specjoule.meters.energy import WindowEnergy
from specjoule.meters.factory import MeterSettings, open_meter
from specjoule.meters.sampled import SampledMeter

app = typer.Typer(no_args_is_help=True, help="Record energy and integrate it, without a study.")
check_app = typer.Typer(help="Look at a board and its meter; with --measure, calibrate it.")


class MeterChoice(StrEnum):
    """Meters that can be opened from the command line."""

    AUTO = "auto"
    NVML = "nvml"
    RAPL = "rapl"
    ESTIMATE = "estimate"


class EdgesChoice(StrEnum):
    """Kinds of window."""

    GENERATION = "generation"
    DECODE = "decode"


BoardOption = Annotated[
    str | None, typer.Option(help="UUID of the board; default: what CUDA's or Slurm's variables say.")
]
MeterOption = Annotated[MeterChoice | None, typer.Option(help="Default: nvml where --board is given, else auto.")]


@app.command()
def record(
    output: Annotated[Path, typer.Option(help="Parquet file to write.")],
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to record.")],
    board: BoardOption = None,
    meter: MeterOption = None,
    host: Annotated[bool, typer.Option(help="Record the host's RAPL beside the board.")] = False,
    poll_ms: Annotated[float | None, typer.Option(min=0.1, help="How often the counter is read.")] = None,
    pid: Annotated[int | None, typer.Option(help="Process tree to count, for the estimate.")] = None,
    powercap_root: Annotated[Path, typer.Option(hidden=True)] = Path("/sys/class/powercap"),
) -> None:
    """Record every refresh of the energy counter, and power, clocks and temperature, for some seconds."""
    from specjoule.meters.tracefile import RecordedTrace, write_trace

    def run() -> dict[str, Any]:
        device = _open(board, meter, poll_ms=poll_ms, host=host, powercap_root=powercap_root)
        info = device.start()
        try:
            if pid is not None:
                device.attach(pid)
            start_ns = time.monotonic_ns()
            device.clock.sleep_s(seconds)
            end_ns = time.monotonic_ns()
            trace = device.trace(start_ns, end_ns)
            write_trace(output, RecordedTrace(trace, device.name, info, device.calibration))
        finally:
            device.stop()
        return {
            "output": str(output),
            "meter": device.name,
            "provenance": PROVENANCE[device.name],
            "board": info.uuid or info.name,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "refreshes": len(trace.refreshes[BOARD]) if BOARD in trace.refreshes else 0,
            "flags": [flag.value for flag in trace.flags],
        }

    _print(run)


@app.command()
def integrate(
    trace: Annotated[Path, typer.Argument(help="Trace written by `record`.")],
    start_ns: Annotated[int, typer.Option(help="Start of the window, CLOCK_MONOTONIC ns.")],
    end_ns: Annotated[int, typer.Option(help="End of the window, CLOCK_MONOTONIC ns.")],
    edges: Annotated[EdgesChoice, typer.Option(help="Idle outside (generation) or busy outside (decode).")] = (
        EdgesChoice.GENERATION
    ),
) -> None:
    """Print the energy between two times of a recorded trace, as JSON."""
    from specjoule.meters.recompute import host_energy, recompute_window
    from specjoule.meters.tracefile import read_trace

    def run() -> dict[str, Any]:
        if end_ns <= start_ns:
            raise MeterError(f"--end-ns {end_ns} must come after --start-ns {start_ns}.")
        recorded = read_trace(trace)
        result = recompute_window(
            recorded.trace,
            start_ns,
            end_ns,
            edges=edges.value,
            calibration=recorded.calibration,
            power_limit_w=recorded.board.power_limit_w,
        )
        host = host_energy(recorded.trace, result.start_ns, result.end_ns)
        return {**window_json(result), "host_energy_j": host.energy_j, "meter": recorded.meter}

    _print(run)


@app.command("import")
def import_external(
    trace: Annotated[Path, typer.Argument(help="Trace written by `record`; the result is written beside it.")],
    readings: Annotated[Path, typer.Argument(help="CSV with unix_s or time, and energy_j, energy_kwh or power_w.")],
    channel: Annotated[str, typer.Option(help="Name of the meter, e.g. wall.")],
    output: Annotated[Path, typer.Option(help="Parquet file to write.")],
    clock_error_s: Annotated[float, typer.Option(min=0, help="How far the meter's clock may be off.")] = 0.5,
) -> None:
    """Add an external meter's time-stamped readings (BMC, PDU, wall) to a trace as another channel."""
    from specjoule.meters.external import add_external
    from specjoule.meters.tracefile import read_trace, write_trace

    def run() -> dict[str, Any]:
        recorded = read_trace(trace)
        merged = add_external(recorded.trace, readings, channel, clock_error_s=clock_error_s)
        write_trace(output, replace(recorded, trace=merged))
        return {"output": str(output), "channels": sorted({*merged.refreshes, *merged.samples})}

    _print(run)


@check_app.callback(invoke_without_command=True)
def check(
    board: BoardOption = None,
    meter: MeterOption = None,
    measure: Annotated[bool, typer.Option(help="Calibrate: load the board for about a minute and a half.")] = False,
    load_command: Annotated[str | None, typer.Option(help="Program that loads the board; default: PyTorch.")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Load steps for the lag.")] = 10,
    step_s: Annotated[float, typer.Option(min=0.2, help="Length of each half step.")] = 1.5,
    aliasing_s: Annotated[float, typer.Option(min=0.1, help="Length of each square load.")] = 1.5,
    powercap_root: Annotated[Path, typer.Option(hidden=True)] = Path("/sys/class/powercap"),
) -> None:
    """Say what meter this machine allows and what is known of the board; with --measure, find it out and keep it."""

    def run() -> dict[str, Any]:
        device = _open(board, meter, powercap_root=powercap_root)
        info = device.start()
        try:
            report = _describe(device, info)
            if measure:
                report["calibration"] = _measure(device, info, load_command, steps, step_s, aliasing_s)
        finally:
            device.stop()
        return report

    _print(run)


def _describe(device: SampledMeter, info: BoardInfo) -> dict[str, Any]:
    """Watch a board at rest for a second."""
    start_ns = time.monotonic_ns()
    device.clock.sleep_s(1.0)
    trace = device.trace(start_ns, time.monotonic_ns())
    seen = trace.refreshes.get(BOARD)
    refresh_ns = None if seen is None else seen.interval_ns
    foreign = trace.samples.get("foreign_processes")
    kept = None if info.uuid is None else load_calibration(info.uuid)
    return {
        "meter": device.name,
        "provenance": PROVENANCE[device.name],
        "note": device.note,
        "board": asdict(info),
        "refresh_ms": None if refresh_ns is None else refresh_ns * 1e-6,
        "foreign_processes": None if foreign is None else int(foreign.value.max()),
        "flags": [flag.value for flag in trace.flags],
        "calibration": None if kept is None else asdict(kept),
    }


def _measure(
    device: SampledMeter, info: BoardInfo, load_command: str | None, steps: int, step_s: float, aliasing_s: float
) -> dict[str, Any]:
    from specjoule.meters.calibration import calibrate
    from specjoule.meters.load import ProgramLoad, torch_load_command

    if device.name != "nvml" or info.uuid is None:
        raise MeterError(f"The meter {device.name} has no lag and needs no calibration; --measure is for GPU boards.")
    command = torch_load_command(info.uuid) if load_command is None else shlex.split(load_command)
    with ProgramLoad(command) as load:
        found = calibrate(device, info, load, n_steps=steps, step_s=step_s, aliasing_s=aliasing_s)
    path = save_calibration(found)
    return {**asdict(found), "kept_in": str(path)}


def window_json(result: WindowEnergy) -> dict[str, Any]:
    """Return a window's energy under the names of the public columns."""
    return {
        "energy_j": result.energy_j,
        "energy_uncertainty_j": result.uncertainty_j,
        "energy_naive_j": result.naive_j,
        "power_integral_j": result.power_integral_j,
        "refresh_ms": result.refresh_ms,
        "start_ns": result.start_ns,
        "end_ns": result.end_ns,
        "flags": [flag.value for flag in result.flags],
    }


def _open(board: str | None, meter: MeterChoice | None, **settings: Any) -> SampledMeter:
    name = meter or (MeterChoice.AUTO if board is None else MeterChoice.NVML)
    device = open_meter(MeterSettings(name=name.value, board=board, **settings))
    if device.note is not None:
        print(device.note, file=sys.stderr)
    return device


def _print(run: Any) -> None:
    """Print a result as JSON, or an error as one sentence with status 1."""
    try:
        print(json.dumps(run(), indent=2))
    except SpecJouleError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
