"""Probes of what can measure energy here: the processor's counter and NVIDIA boards."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from specjoule.fitness.finding import Finding, Level
from specjoule.meters.sources.rapl import probe


def rapl(root: Path = Path("/sys/class/powercap"), *, needed: bool = True) -> Finding:
    """Whether the processor's energy counter can be read; `needed`: the study has nothing better."""
    found = probe(root)
    if found.problem is None:
        names = ", ".join(zone.channel for zone in found.zones)
        return Finding("processor meter", "ok", f"RAPL is readable ({names}): energy is measured")
    what, _, remedy = found.problem.partition("; ")
    level: Level = "warn" if needed else "ok"
    words = "; energy is estimated from CPU time, and every table and figure says so" if needed else ""
    return Finding("processor meter", level, f"{what.rstrip('.')}{words}", remedy or None)


def boards(nvml: Any = None, *, needed: bool = False) -> list[Finding]:
    """What each NVIDIA board allows; `needed`: the study measures on one. `nvml` is pynvml or its stand-in."""
    level: Level = "fail" if needed else "ok"
    remedy = "install the NVIDIA driver, or name another gpu in the study" if needed else None
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return [Finding("boards", level, "the package nvidia-ml-py is not installed", remedy)]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [Finding("boards", level, f"no NVIDIA board can be read ({_text(error)})", remedy)]
    try:
        count = nvml.nvmlDeviceGetCount()
        if not count:
            return [Finding("boards", level, "the NVIDIA driver runs but shows no board", remedy)]
        return [_board(nvml, index) for index in range(count)]
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _board(nvml: Any, index: int) -> Finding:
    name = f"board {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        found = f"{_text(nvml.nvmlDeviceGetName(handle))} {_text(nvml.nvmlDeviceGetUUID(handle))}"
    except nvml.NVMLError as error:
        return Finding(name, "fail", f"cannot be opened ({_text(error)})", "look into the driver's log (dmesg)")
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        return Finding(
            name, "fail", f"{found}: no energy counter ({_text(error)})", "use a board of Volta or newer, bare metal"
        )
    problems = []
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return Finding(
                name, "fail", f"{found}: split by MIG, its counter covers all parts", "measure on a board without MIG"
            )
    with contextlib.suppress(nvml.NVMLError):
        others = len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if others:
            problems.append((f"{others} other process(es) compute on it", "end them: their energy would be counted"))
    with contextlib.suppress(nvml.NVMLError):
        if not nvml.nvmlDeviceGetPersistenceMode(handle):
            problems.append(("persistence mode is off", "sudo nvidia-smi -pm 1"))
    if problems:
        words, remedies = zip(*problems, strict=True)
        return Finding(name, "warn", f"{found}: {'; '.join(words)}", "; ".join(remedies))
    return Finding(name, "ok", f"{found}: energy counter readable, idle")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
