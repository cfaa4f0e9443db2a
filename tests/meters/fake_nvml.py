"""Builds the stand-in driver and drives it from outside: maps the state that `fake_nvml.c` reads and writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from virtual_board import Load

SOURCE = Path(__file__).with_name("fake_nvml.c")
MAX_SPANS, MAX_PROCESSES, MAX_BOARDS = 512, 8, 8
UUID = "GPU-11111111-2222-3333-4444-55555555555{}"

_D, _L, _I = ctypes.c_double, ctypes.c_int64, ctypes.c_int32


class Board(ctypes.Structure):
    """Mirror of `board_t`."""

    _fields_ = [
        ("uuid", ctypes.c_char * 80), ("name", ctypes.c_char * 64), ("pci", ctypes.c_char * 32),
        *((n, _D) for n in ("idle_w", "busy_w", "ripple_w", "step_s", "decay_w", "decay_s")),
        *((n, _D) for n in ("refresh_s", "jitter", "latency_s", "lag_s", "base_j", "power_scale")),
        ("span_start", _L * MAX_SPANS), ("span_end", _L * MAX_SPANS),
        ("span_period_s", _D * MAX_SPANS), ("span_duty", _D * MAX_SPANS),
        *((n, _L) for n in ("freeze_ns", "reset_ns", "drop_mj", "add_mj")),
        *((n, _I) for n in ("n_spans", "energy_error", "any_error", "clock_error")),
        *((n, _I) for n in ("power_limit_mw", "ecc", "persistence", "numa_node", "mig", "obeys_clock")),
        *((n, _I) for n in ("locked_min", "locked_max", "max_mhz", "temperature_c", "n_processes")),
        ("pids", _I * MAX_PROCESSES),
        *((n, _L) for n in ("throttle_bits", "capped_ns", "sets", "resets", "energy_calls")),
    ]  # fmt: skip


class State(ctypes.Structure):
    """Mirror of `state_t`."""

    _fields_ = [
        ("epoch_ns", _L), ("n_boards", _I), ("driver_loads", _I), ("driver", ctypes.c_char * 32),
        ("boards", Board * MAX_BOARDS),
    ]  # fmt: skip


DEFAULTS: Mapping[str, Any] = {
    "idle_w": 120.0, "busy_w": 600.0, "ripple_w": 80.0, "step_s": 0.0317, "decay_w": 60.0, "decay_s": 2.0,
    "refresh_s": 0.1, "jitter": 0.1, "latency_s": 0.0005, "lag_s": 0.0, "base_j": 5.4e7, "power_scale": 1.0,
    "power_limit_mw": 700_000, "ecc": 1, "persistence": 1, "numa_node": 0, "mig": 0, "obeys_clock": 1,
    "max_mhz": 1980, "temperature_c": 45,
}  # fmt: skip


def build(directory: Path) -> Path:
    """Compile the library as `libnvidia-ml.so.1` with the system's compiler, or with `ziglang` where there is none."""
    library = directory / "libnvidia-ml.so.1"
    if library.exists() and library.stat().st_mtime >= SOURCE.stat().st_mtime:
        return library
    directory.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    fresh = directory / f"build-{os.getpid()}.so"
    subprocess.run(
        [*command, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", str(fresh), "-lm"],
        check=True,
    )
    fresh.replace(library)
    return library


class FakeDriver:
    """A driver with boards; every change is seen at once by every process that loaded the library."""

    def __init__(self, directory: Path, library: Path, boards: list[Mapping[str, Any]] | None = None) -> None:
        self.path = directory / "nvml.state"
        self.path.write_bytes(bytes(ctypes.sizeof(State)))
        with self.path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), 0)
        self.state = State.from_buffer(self._map)
        self.state.epoch_ns = time.monotonic_ns() - 10_000_000_000
        self.state.driver = b"580.95.05"
        for options in boards or [{}]:
            index = self.state.n_boards
            board = self.state.boards[index]
            board.uuid = UUID.format(index).encode()
            board.name = b"NVIDIA H100 80GB HBM3"
            board.pci = f"00000000:{0x18 + index:02X}:00.0".encode()
            for key, value in {**DEFAULTS, **options}.items():
                setattr(board, key, value)
            self.state.n_boards = index + 1
        self.environment = {
            "FAKE_NVML_STATE": str(self.path),
            "LD_LIBRARY_PATH": f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        }

    def __getitem__(self, index: int) -> Board:
        return self.state.boards[index]  # type: ignore[no-any-return]

    def uuid(self, index: int = 0) -> str:
        return bytes(self[index].uuid).decode()

    def load_on(self, index: int = 0, t_ns: int | None = None) -> int:
        board = self[index]
        now = time.monotonic_ns() if t_ns is None else t_ns
        board.span_start[board.n_spans], board.span_end[board.n_spans] = now, 0
        board.n_spans += 1
        return now

    def load_off(self, index: int = 0, t_ns: int | None = None) -> int:
        board = self[index]
        now = time.monotonic_ns() if t_ns is None else t_ns
        board.span_end[board.n_spans - 1] = now
        return now

    def plan(self, spans: list[tuple[int, int]], index: int = 0) -> None:
        """Set all loads beforehand: the board then needs nobody to switch it in time."""
        board = self[index]
        for i, (start, end) in enumerate(spans):
            board.span_start[i], board.span_end[i] = start, end
        board.n_spans = len(spans)

    def truth_j(self, start_ns: int, end_ns: int, index: int = 0) -> float:
        """Energy really drawn between two times."""
        board = self[index]
        spans = tuple(
            (int(board.span_start[i]), int(board.span_end[i]) or 2**62) for i in range(board.n_spans)
        )  # fmt: skip
        load = Load(
            spans, board.idle_w, board.busy_w, board.ripple_w, board.step_s * 1e9, board.decay_w, board.decay_s * 1e9
        )
        begin, finish = load.energy_j(np.array([start_ns, end_ns], dtype=np.float64))
        return float(finish - begin)

    def close(self) -> None:
        del self.state
        self._map.close()
