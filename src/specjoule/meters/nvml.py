"""The few NVML calls that SpecJoule makes, through nvidia-ml-py, with the driver's codes as typed errors.

Everything that touches a board goes through here: one place knows what an error code means and which call is optional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from specjoule.errors import MeterError
from specjoule.meters.base import BoardInfo
from specjoule.meters.sources import ReadFault
from specjoule.reasons import Reason

T = TypeVar("T")
Handle = Any
"""An opaque device handle of nvidia-ml-py."""

_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Reason.COUNTER_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Reason.COUNTER_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NO_PERMISSION,
    pynvml.NVML_ERROR_UNINITIALIZED: Reason.DRIVER_RELOADED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Reason.DRIVER_RELOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Reason.DRIVER_RELOADED,
}
"""Everything not listed (lost, not found, reset required, unknown) is a board that cannot be read any more."""

MODULE_BOARDS = ("GH200", "GB200", "GB300")
"""Boards whose energy counter covers CPU and GPU together."""


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call an NVML function. Raises ReadFault with the reason code."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        reason = _REASONS.get(error.value, Reason.BOARD_LOST)
        raise ReadFault(reason, f"{function.__name__}: {error}") from error


def optional(function: Callable[..., T], *arguments: Any) -> T | None:
    """Call an NVML function; None where the driver or board does not answer."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def initialise() -> None:
    """Load the driver's library. Raises MeterError with the remedy."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise MeterError(
            "No NVIDIA driver was found (libnvidia-ml.so.1); run on a machine with an NVIDIA GPU, in a container with"
            " `--gpus`, or choose another meter."
        ) from None
    except pynvml.NVMLError as error:
        raise MeterError(f"The NVIDIA driver does not answer ({error}); check it with `nvidia-smi`.") from None


def shut_down() -> None:
    """Let go of the driver; safe when it is gone."""
    optional(pynvml.nvmlShutdown)


def by_uuid(uuid: str) -> Handle:
    """Return the board with this UUID. Raises ReadFault."""
    return call(pynvml.nvmlDeviceGetHandleByUUID, uuid.encode())


def uuids() -> list[str]:
    """Return the UUIDs of all boards in NVML's order (PCI bus); CUDA's differs without CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    count = call(pynvml.nvmlDeviceGetCount)
    handles = (call(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(count))
    return [call(pynvml.nvmlDeviceGetUUID, handle) for handle in handles]


def driver_version() -> str | None:
    """Return the driver's version."""
    return optional(pynvml.nvmlSystemGetDriverVersion)


def is_mig(handle: Handle) -> bool:
    """Return whether the board is split by MIG."""
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    return bool(mode and mode[0])


def board_info(handle: Handle) -> BoardInfo:
    """Return what a board says of itself."""
    name = call(pynvml.nvmlDeviceGetName, handle)
    limit_mw = optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    ecc = optional(pynvml.nvmlDeviceGetEccMode, handle)
    persistence = optional(pynvml.nvmlDeviceGetPersistenceMode, handle)
    pci = optional(pynvml.nvmlDeviceGetPciInfo_v3, handle)
    pci_bus_id = None if pci is None else _text(pci.busId)
    return BoardInfo(
        uuid=call(pynvml.nvmlDeviceGetUUID, handle),
        name=name,
        driver=driver_version(),
        power_limit_w=None if limit_mw is None else limit_mw / 1000.0,
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
        pci_bus_id=pci_bus_id,
        numa_node=_numa_node(handle, pci_bus_id),
        scope="module" if any(part in name for part in MODULE_BOARDS) else "board",
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _numa_node(handle: Handle, pci_bus_id: str | None) -> int | None:
    """Return the board's NUMA node from the driver, else from sysfs, where -1 means that the machine has none."""
    from pathlib import Path

    node = optional(pynvml.nvmlDeviceGetNumaNodeId, handle)
    if node is not None:
        return int(node)
    if pci_bus_id is None:
        return None
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        found = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return found if found >= 0 else None


def compute_pids(handle: Handle) -> list[int]:
    """Return the process ids that compute on the board. Raises ReadFault."""
    return [int(process.pid) for process in call(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)]
