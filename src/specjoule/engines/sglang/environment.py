"""The server's environment: what is set, what is dropped, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specjoule.errors import ConfigurationError

SIMULATION_PREFIX = "SGLANG_SIMULATE_"
"""Variables that make the server invent accepted lengths: useful in one named sub-study, poison anywhere else."""

SERVER_PREFIXES: tuple[str, ...] = ("SGLANG_", "SGL_")


def cache_environment(cache_dir: Path, release: str) -> dict[str, str]:
    """Return the variables that keep every compiled kernel in one folder of this node, apart for each release."""
    base = cache_dir / f"sglang-{release}"
    return {
        "SGLANG_CACHE_DIR": str(base),
        "SGLANG_DG_CACHE_DIR": str(base / "deep_gemm"),
        "SGLANG_JIT_CACHE_DIR": str(base / "jit"),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        "CUDA_CACHE_PATH": str(base / "nv"),
        "TILELANG_CACHE_DIR": str(base / "tilelang"),
        "FLASHINFER_WORKSPACE_BASE": str(base),
        "TVM_FFI_CACHE_DIR": str(base / "tvm-ffi"),
    }


def offline_environment() -> dict[str, str]:
    """Return the variables that keep a compute node from asking the hub for anything."""
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def refuse_simulation(variables: Mapping[str, str], asked_for: bool, where: str) -> None:
    """Raise ConfigurationError if accepted lengths would be simulated and the study did not ask for that."""
    found = sorted(name for name in variables if name.startswith(SIMULATION_PREFIX))
    if found and not asked_for:
        raise ConfigurationError(
            f"{where} sets {found[0]}: the server would invent accepted lengths; unset it, or set "
            "engine.settings.simulated_acceptance in a study that is about simulated acceptance"
        )


def child_environment(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the server's process.

    Server variables of the caller's shell are dropped: only what the launch sets, and thus what is recorded, counts.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(SERVER_PREFIXES)}
    loopback = "127.0.0.1,localhost"
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = f"{kept[name]},{loopback}" if kept.get(name) else loopback
    return {**kept, "PYTHONUNBUFFERED": "1", **own}


def dropped_variables(inherited: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the caller's server variables that the server does not get."""
    return tuple(sorted(name for name in inherited if name.startswith(SERVER_PREFIXES)))
