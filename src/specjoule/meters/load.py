"""Loads for calibration: PyTorch where present, else a site's own program behind the same few words.

A load is a program that reads lines `square PERIOD_MS DUTY SECONDS` on standard input, makes the board busy for DUTY of
each period, and answers each with one line of JSON, `{"spans": [[on_ns, off_ns], ...]}` in CLOCK_MONOTONIC nanoseconds:
when the board really began and ended working. `python -m specjoule.meters.load UUID` is that program for PyTorch; any
other is named by `--load-command`. An empty line or the end of its input ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from specjoule.errors import MeterError

Spans = list[tuple[int, int]]

_CHUNK_S = 0.0005
"""Work queued at once: short, so that a span ends when it should."""


class Load(Protocol):
    """Something that makes a board busy on command."""

    def square(self, period_s: float, duty: float, seconds: float) -> Spans:
        """Run a square load for `seconds`; return when the board was busy, ns."""
        ...


class ProgramLoad:
    """A load in a process of its own."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ProgramLoad:
        """Start the program."""
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise MeterError(f"The calibration load {self._command[0]} cannot be started ({error}).") from None
        return self

    def __exit__(self, *_: object) -> None:
        """End the program."""
        if self._process is not None:
            self._process.communicate()

    def square(self, period_s: float, duty: float, seconds: float) -> Spans:
        """Run a square load and return its spans. Raises MeterError where the program does not answer."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"square {period_s * 1e3:g} {duty:g} {seconds:g}\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            return [(int(on_ns), int(off_ns)) for on_ns, off_ns in answer["spans"]]
        except (BrokenPipeError, ValueError, KeyError, TypeError):
            raise MeterError(
                f"The calibration load {' '.join(self._command)} gave no answer; without PyTorch in this environment"
                " name a program with --load-command (docs/meters.md says what it must do)."
            ) from None


def torch_load_command(uuid: str) -> list[str]:
    """Return the command of the PyTorch load on a board."""
    return [sys.executable, "-m", "specjoule.meters.load", uuid]


def _busy_until(torch: Any, matrix: Any, off_ns: int) -> tuple[int, int]:
    """Multiply until a time; return when the board was first and last known to work."""
    torch.cuda.synchronize()
    on_ns = time.monotonic_ns()
    while time.monotonic_ns() < off_ns - _CHUNK_S * 1e9:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()
    return on_ns, time.monotonic_ns()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve square loads with PyTorch matrix products on one board."""
    import os

    (uuid,) = arguments or sys.argv[1:]
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid  # before torch is imported: it is read only once
    try:
        import torch
    except ImportError:
        print("null", flush=True)
        return 1
    if not torch.cuda.is_available():
        print("null", flush=True)
        return 1
    # About half a millisecond of tensor-core work on a board of 2022; large enough to draw near the limit.
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    for line in sys.stdin:
        if not line.strip():
            return 0
        _, period_ms, duty, seconds = line.split()
        begin_ns = time.monotonic_ns()
        spans = []
        for start_ns, off_ns in square_spans(begin_ns, float(period_ms) * 1e-3, float(duty), float(seconds)):
            time.sleep(max(start_ns - time.monotonic_ns(), 0) * 1e-9)
            spans.append(_busy_until(torch, matrix, off_ns))
        print(json.dumps({"spans": spans}), flush=True)
    return 0


def square_spans(begin_ns: int, period_s: float, duty: float, seconds: float) -> Spans:
    """Return when a square load shall be on: whole periods only, the first beginning at `begin_ns`."""
    n_periods = max(int(seconds / period_s + 1e-9), 1)
    starts = [begin_ns + round(i * period_s * 1e9) for i in range(n_periods)]
    return [(start, start + round(duty * period_s * 1e9)) for start in starts]


if __name__ == "__main__":
    sys.exit(main())
