"""A powercap tree of two sockets that counts like the hardware's."""

from __future__ import annotations

import threading
import time
from pathlib import Path


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
