"""Probes of the machine: cores, load, governor, power supply, memory, disk, timer."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from specjoule.fitness.finding import Finding

GB = 1e9
MAX_LOAD_SHARE = 0.25
"""Load of other work, per usable core, above which a processor measurement is noisy."""
MAX_OVERSHOOT_MS = 2.0
"""A sampler that is woken later than this dates counter refreshes badly."""


def cores() -> Finding:
    """How many cores this process may use, and of how many."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _quota()
    allowed = min(float(usable), quota) if quota else float(usable)
    found = f"{usable} of {present} cores usable" + (f", limited to {quota:g} by a CPU quota" if quota else "")
    if allowed < 2:
        return Finding(
            "cores", "warn", found, "give this process two cores or more: engine and sampler share one otherwise"
        )
    if quota and quota < usable:
        return Finding("cores", "warn", found, "measure outside the quota: a throttled container stalls in mid-round")
    return Finding("cores", "ok", found)


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def load(average: float | None = None) -> Finding:
    """How busy other work keeps the machine."""
    try:
        busy = os.getloadavg()[0] if average is None else average
    except OSError:
        return Finding("load", "warn", "the system tells no load average", "make sure nothing else computes here")
    usable = len(os.sched_getaffinity(0))
    found = f"load average {busy:.2f} on {usable} cores"
    if busy > MAX_LOAD_SHARE * usable:
        return Finding("load", "warn", found, "end other work or wait: it is measured with the study or slows it down")
    return Finding("load", "ok", found)


def governor(root: Path = Path("/sys/devices/system/cpu")) -> Finding:
    """Whether core clocks are left to a governor that lowers them."""
    names = set()
    for path in root.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            names.add(path.read_text().strip())
        except OSError:
            continue
    if not names:
        return Finding("governor", "ok", "no frequency governor is visible (a virtual machine, or clocks are fixed)")
    found = f"frequency governor {', '.join(sorted(names))}"
    if names == {"performance"}:
        return Finding("governor", "ok", found)
    return Finding(
        "governor",
        "warn",
        found,
        "for steadier numbers: sudo cpupower frequency-set -g performance (recorded either way)",
    )


def power_supply(root: Path = Path("/sys/class/power_supply")) -> Finding:
    """Whether a laptop runs from its battery."""
    online = []
    for path in root.glob("*/online"):
        try:
            online.append(path.read_text().strip() == "1")
        except OSError:
            continue
    if online and not any(online):
        return Finding("power supply", "warn", "running from the battery", "plug it in: clocks are lowered on battery")
    return Finding("power supply", "ok", "mains" if online else "no battery is visible")


def memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Whether the embedded model fits in memory."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return Finding("memory", "ok", "the system does not tell")
    found = f"{free / GB:.1f} GB available"
    if free < 2 * GB:
        return Finding("memory", "warn", found, "free some: the default study's model needs about 1.5 GB")
    return Finding("memory", "ok", found)


def disk(folder: Path) -> Finding:
    """Whether results can be written into `folder` and have room."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", "fail", f"{existing} is not writable", "run in a folder of your own, or change its owner"
        )
    free = shutil.disk_usage(existing).free
    found = f"{free / GB:.1f} GB free below {existing}"
    if free < 0.2 * GB:
        return Finding("disk", "fail", found, "make room: a study needs some hundred MB")
    if free < 2 * GB:
        return Finding("disk", "warn", found, "make room: the default study needs about 1 GB with its model")
    return Finding("disk", "ok", found)


def timer(tries: int = 60, sleep_s: float = 0.002) -> Finding:
    """How late a sleeping process is woken: what dates the counter's refreshes."""
    late = []
    for _ in range(tries):
        begun = time.monotonic_ns()
        time.sleep(sleep_s)
        late.append((time.monotonic_ns() - begun) / 1e6 - sleep_s * 1e3)
    late.sort()
    p95 = late[int(0.95 * (len(late) - 1))]
    found = f"a sleeping process is woken {late[len(late) // 2]:.2f} ms late (95th percentile {p95:.2f} ms)"
    if p95 > MAX_OVERSHOOT_MS:
        return Finding("timer", "warn", found, "end other work; windows get a larger stated uncertainty until then")
    return Finding("timer", "ok", found)
