"""Which board is meant: from a UUID or index given, else from CUDA's and Slurm's variables. Refused where ambiguous.

One board by UUID and one sampler: tools that count all boards of a node, or one board once a rank, are off by integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specjoule.errors import MeterError

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")
"""In this order: the first that is set decides. CUDA's is what the engine itself obeys."""


def resolve(asked: str | None, environment: Mapping[str, str], boards: Sequence[str]) -> str:
    """Return the UUID of the one board that is meant.

    Parameters
    ----------
    asked
        UUID, its unambiguous beginning, or an index in PCI order; None: what the environment says.
    environment
        Usually `os.environ`.
    boards
        UUIDs of all boards the driver shows, in NVML's (PCI bus) order.
    """
    if not boards:
        raise MeterError("The NVIDIA driver shows no board; ask Slurm for one (`--gres=gpu:1`).")
    if asked is not None:
        return _one(asked, "the configuration", boards)
    for variable in _VARIABLES:
        text = environment.get(variable)
        if text is None or (not text.strip() and variable != "CUDA_VISIBLE_DEVICES"):
            continue
        named = [part.strip() for part in text.split(",") if part.strip()]
        if not named or named[0] == "-1":
            raise MeterError(f"{variable}={text!r} hides every board; unset it or name one board.")
        if len(named) > 1:
            raise MeterError(
                f"{variable}={text} names {len(named)} boards and SpecJoule measures one; name it by UUID"
                f" (`board: {boards[0]}`)."
            )
        return _from_variable(named[0], variable, environment, boards)
    if len(boards) == 1:
        return boards[0]
    raise MeterError(
        f"The driver shows {len(boards)} boards and neither the configuration nor CUDA_VISIBLE_DEVICES names one; name"
        f" it by UUID, one of: {', '.join(boards)}."
    )


def _from_variable(name: str, variable: str, environment: Mapping[str, str], boards: Sequence[str]) -> str:
    """Resolve a variable's only entry, minding that indices do not always count what NVML counts."""
    if not name.isdigit():
        return _one(name, variable, boards)
    if len(boards) == 1:
        # Slurm with cgroups shows one board and numbers it by the node (SLURM_JOB_GPUS=3) or by what is shown (0).
        return boards[0]
    if variable == "CUDA_VISIBLE_DEVICES" and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise MeterError(
            f"CUDA_VISIBLE_DEVICES={name} is an index in CUDA's order (fastest first), which need not be the driver's;"
            f" set CUDA_DEVICE_ORDER=PCI_BUS_ID or name the board by UUID, one of: {', '.join(boards)}."
        )
    return _one(name, variable, boards)


def _one(name: str, where: str, boards: Sequence[str]) -> str:
    if name.startswith("MIG"):
        raise MeterError(
            f"{where} names the MIG part {name}: the counter covers the whole board, so that a part's energy cannot be"
            " told (mig_board); take a whole board."
        )
    if name.isdigit():
        index = int(name)
        if index < len(boards):
            return boards[index]
        raise MeterError(f"{where} names board {index}, and the driver shows {len(boards)} (0 to {len(boards) - 1}).")
    # CUDA allows the beginning of a UUID as long as it is unambiguous.
    found = [uuid for uuid in boards if uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise MeterError(f"{where} names {name}, and {len(found)} boards begin so: {', '.join(found)}.")
    raise MeterError(f"{where} names {name}, and the driver shows only: {', '.join(boards)}.")
