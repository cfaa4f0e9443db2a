"""A calibration load for the stand-in driver, behind the same few words as the real one: `fake_load.py STATE INDEX`."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from pathlib import Path

import fake_nvml

from specjoule.meters.load import square_spans


def main() -> None:
    path, index = sys.argv[1:]
    with Path(path).open("r+b") as handle:
        mapped = mmap.mmap(handle.fileno(), ctypes.sizeof(fake_nvml.State))
    board = fake_nvml.State.from_buffer(mapped).boards[int(index)]
    for line in sys.stdin:
        if not line.strip():
            return
        _, period_ms, duty, seconds = line.split()
        begin_ns = time.monotonic_ns() + 5_000_000
        period_s = float(period_ms) * 1e-3
        spans = square_spans(begin_ns, period_s, float(duty), float(seconds))
        if period_s < 1:
            whole_ns = begin_ns + round(len(spans) * period_s * 1e9)
            add(board, begin_ns, whole_ns, period_s, float(duty))
        else:
            for on_ns, off_ns in spans:
                add(board, on_ns, off_ns, 0.0, 0.0)
        time.sleep(max(spans[-1][1] - time.monotonic_ns(), 0) * 1e-9)
        print(json.dumps({"spans": spans}), flush=True)


def add(board: fake_nvml.Board, on_ns: int, off_ns: int, period_s: float, duty: float) -> None:
    i = board.n_spans
    board.span_start[i], board.span_end[i] = on_ns, off_ns
    board.span_period_s[i], board.span_duty[i] = period_s, duty
    board.n_spans = i + 1


if __name__ == "__main__":
    main()
