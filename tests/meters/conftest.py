"""Fixtures of the meter tests: a powercap tree that counts, and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fake_nvml
import pytest
from fake_powercap import Powercap


@pytest.fixture
def powercap(tmp_path: Path) -> Iterator[Callable[..., Powercap]]:
    """Make running powercap trees."""
    made: list[Powercap] = []

    def make(**options: object) -> Powercap:
        made.append(Powercap(tmp_path / f"powercap{len(made)}", **options).start())  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tree in made:
        tree.stop()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1, compiled once."""
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., fake_nvml.FakeDriver]]:
    """Make a driver with the boards asked for; processes started from here on find it as if it were NVIDIA's."""
    made: list[fake_nvml.FakeDriver] = []

    def make(*boards: dict[str, object]) -> fake_nvml.FakeDriver:
        made.append(fake_nvml.FakeDriver(tmp_path, nvml_library, list(boards) or None))
        for key, value in made[-1].environment.items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("SPECJOULE_STATE_DIR", str(tmp_path / "state"))
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL"):
            monkeypatch.delenv(name, raising=False)
        return made[-1]

    yield make
    for one in made:
        one.close()
