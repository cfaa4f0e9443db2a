"""RAPL through Linux's powercap files: the energy of each CPU package and of its DRAM.

The counters are those of the kernel's `intel_rapl` driver (AMD's too), in microjoules, updated by the hardware about
every millisecond and wrapping at `max_energy_range_uj`. Core and uncore zones are parts of the package and are left
out; `psys` covers the platform, packages included, and is left out as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specjoule.errors import MeterError
from specjoule.meters.base import BOARD, BoardInfo
from specjoule.meters.sources import Counter, Gauge, ReadFault
from specjoule.reasons import Reason

NATIVE_REFRESH_NS = 1_000_000
"""Intel's manual (SDM vol. 3, RAPL): energy status is updated about every millisecond."""

_MAX_ZONE_W = 3_000.0
"""More than any one package or its memory draws: a fall of the counter that implies more is no wrap but a reset."""


@dataclass(frozen=True)
class Zone:
    """One RAPL zone that is counted, with the wrap of its counter."""

    channel: str
    path: Path
    wrap_uj: int | None


@dataclass(frozen=True)
class RaplProbe:
    """What was found under a powercap root: readable zones, or the sentence that says why there are none."""

    zones: tuple[Zone, ...] = ()
    problem: str | None = None


def probe(root: Path) -> RaplProbe:
    """Find the package and DRAM zones and try to read each one."""
    found = sorted(zone for path in root.glob("*:*") if (zone := _zone(path)) is not None)
    if not found:
        return RaplProbe(
            problem=f"RAPL cannot be read: {root} holds no CPU package zone (no powercap driver here, as in most"
            " virtual machines and containers); load it with `sudo modprobe intel_rapl_common intel_rapl_msr`, or run"
            " on the bare machine."
        )
    zones = []
    for channel, path in found:
        counter = path / "energy_uj"
        try:
            int(counter.read_text())
        except PermissionError:
            return RaplProbe(
                problem=f"RAPL cannot be read: only root may read {counter} (a rule of Linux since 2020 against a side"
                f" channel); allow it until the next boot with `sudo chmod -R a+r {root}/*/energy_uj` (for good: a udev"
                " rule, see docs/meters.md)."
            )
        except (OSError, ValueError) as error:
            return RaplProbe(problem=f"RAPL cannot be read: {counter} gives no number ({error}).")
        zones.append(Zone(channel, counter, _wrap(path)))
    return RaplProbe(zones=tuple(zones))


def _zone(path: Path) -> tuple[str, Path] | None:
    """Return the channel name of a zone directory, or None for zones that are parts or sums of others.

    `intel-rapl-mmio` is a second door to the same counters; taking both would count a package twice.
    """
    if not path.name.startswith(("intel-rapl:", "amd-rapl:")):
        return None
    try:
        name = (path / "name").read_text().strip()
    except OSError:
        return None
    if re.fullmatch(r"package-\d+(-die-\d+)?", name):
        return name, path
    if name == "dram":
        package = path.name.rpartition(":")[0]
        try:
            socket = (path.parent / package / "name").read_text().strip().removeprefix("package-")
        except OSError:
            socket = package.rpartition(":")[2]
        return f"dram-{socket}", path
    return None


def _wrap(path: Path) -> int | None:
    try:
        value = int((path / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return None
    return value or None


@dataclass
class Unwrapper:
    """Turns a wrapping microjoule counter into one that only grows; a fall that is no wrap is a reset."""

    wrap_uj: int | None
    last_uj: int | None = None
    base_uj: int = 0
    last_t_ns: int = 0

    def joules(self, value_uj: int, t_ns: int) -> float:
        """Take in one reading and return the growing total, joules. Raises ReadFault where the counter was reset."""
        if self.last_uj is not None and value_uj < self.last_uj:
            self._fell(value_uj, t_ns)
        self.last_uj, self.last_t_ns = value_uj, t_ns
        return (self.base_uj + value_uj) * 1e-6

    def _fell(self, value_uj: int, t_ns: int) -> None:
        assert self.last_uj is not None
        grown_uj = (self.wrap_uj or 0) - self.last_uj + value_uj
        seconds = max(t_ns - self.last_t_ns, NATIVE_REFRESH_NS) * 1e-9
        if self.wrap_uj is None or not 0 <= grown_uj <= max(_MAX_ZONE_W * seconds, 10.0) * 1e6:
            self.last_uj = value_uj
            raise ReadFault(Reason.COUNTER_RESET, f"the counter fell from {self.last_uj} to {value_uj} uJ")
        # The kernel wraps at max_energy_range_uj itself: the value after it is 0, so the period is the range.
        self.base_uj += self.wrap_uj


@dataclass
class RaplCounter:
    """All zones of the host, read one after the other."""

    zones: tuple[Zone, ...]
    poll_ns: int
    main: bool
    native_refresh_ns: int | None = NATIVE_REFRESH_NS
    can_rest: bool = False
    channels: tuple[str, ...] = ()
    _fds: list[int] = field(default_factory=list)
    _unwrap: list[Unwrapper] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open every zone's file once: a read is then one system call."""
        names = tuple(zone.channel for zone in self.zones)
        self.channels = (BOARD, *names) if self.main else names
        self._fds = [os.open(zone.path, os.O_RDONLY | os.O_CLOEXEC) for zone in self.zones]
        self._unwrap = [Unwrapper(zone.wrap_uj) for zone in self.zones]

    def read(self) -> Sequence[float]:
        """Return each zone's energy, J, led by their sum where RAPL is the main meter."""
        import time

        values = []
        for fd, unwrap in zip(self._fds, self._unwrap, strict=True):
            try:
                raw = int(os.pread(fd, 32, 0))
            except PermissionError as error:
                raise ReadFault(Reason.NO_PERMISSION, str(error)) from error
            except (OSError, ValueError) as error:
                raise ReadFault(Reason.BOARD_LOST, str(error)) from error
            values.append(unwrap.joules(raw, time.monotonic_ns()))
        return [sum(values), *values] if self.main else values

    def close(self) -> None:
        """Close the files; safe to call twice."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []


class RaplSource:
    """The host's packages and DRAM, as the main meter (`board` = their sum) or beside a GPU's."""

    def __init__(self, root: Path, poll_ns: int, *, main: bool) -> None:
        self._root = root
        self._poll_ns = poll_ns
        self._main = main
        self._counter: RaplCounter | None = None
        self.gauges: Sequence[Gauge] = ()

    @property
    def counters(self) -> Sequence[Counter]:
        """The one counter that reads all zones."""
        return [] if self._counter is None else [self._counter]

    def open(self) -> BoardInfo:
        """Probe the zones and open them. Raises MeterError that says how to allow reading."""
        found = probe(self._root)
        if found.problem is not None:
            raise MeterError(found.problem)
        self._counter = RaplCounter(found.zones, self._poll_ns, self._main)
        return BoardInfo(uuid=None, name=cpu_model(), scope="package")

    def attach(self, pid: int | None) -> None:
        """Ignore the process: packages are counted whole."""

    def recover(self, fault: ReadFault) -> Reason | None:
        """Do nothing: the files stay open."""
        return None

    def close(self) -> None:
        """Close the zones' files."""
        if self._counter is not None:
            self._counter.close()


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name as the kernel gives it, or `CPU`."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return "CPU"
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else "CPU"
