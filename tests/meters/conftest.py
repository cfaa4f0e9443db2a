"""Fixtures of the meter tests: a powercap tree that counts, and one that does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_nvml
import pytest


class Powercap:
    """A powercap tree of two sockets whose files a thread keeps counting up, as the hardware does."""

    def __init__(self, root: Path, *, watts: float = 50.0, wrap_uj: int = 262_143_328_850, start_uj: int = 0) -> None:
        self.root = root
        self.watts = watts
        self.wrap_uj = wrap_uj
        self.start_uj = start_uj
        self.frozen = False
        self.zones: list[Path] = []
        for socket in (0, 1):
            self._zone(f"intel-rapl:{socket}", f"package-{socket}")
            self._zone(f"intel-rapl:{socket}:0", "core")
            self._zone(f"intel-rapl:{socket}:1", "dram")
        self._zone("intel-rapl:2", "psys")
        self._zone("intel-rapl-mmio:0", "package-0")
        self._stop = threading.Event()
        self._files = [(zone / "energy_uj").open("r+b", buffering=0) for zone in self.zones]
        self._began_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def _zone(self, directory: str, name: str) -> None:
        path = self.root / directory
        path.mkdir(parents=True)
        (path / "name").write_text(name + "\n")
        (path / "max_energy_range_uj").write_text(f"{self.wrap_uj}\n")
        (path / "energy_uj").write_text(f"{self.start_uj:020d}\n")
        self.zones.append(path)

    def _count(self) -> None:
        while not self._stop.wait(0.001):
            if self.frozen:
                continue
            elapsed_s = (time.monotonic_ns() - self._began_ns) * 1e-9
            value = (self.start_uj + round(self.watts * elapsed_s * 1e6)) % self.wrap_uj
            for file in self._files:
                file.seek(0)
                file.write(f"{value:020d}\n".encode())

    def start(self) -> Powercap:
        self._began_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for file in self._files:
            file.close()


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
