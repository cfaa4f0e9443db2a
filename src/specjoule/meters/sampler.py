"""The sampler process: `python -m specjoule.meters.sampler LOG SPEC` polls one source and appends to a log.

It runs apart from the measured process so that neither a busy interpreter there delays a poll nor a poll delays the
work. Its standard input is its leash: commands come in on it (`attach PID`, `stop`), and when it closes, or the parent
is gone, the sampler ends. On standard output it says once, as one line of JSON, what it opened or why it could not.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specjoule.clock import Clock, MonotonicClock
from specjoule.errors import MeterError
from specjoule.meters.log import LogWriter
from specjoule.meters.schedule import FixedSchedule, RefreshSchedule
from specjoule.meters.sources import Counter, Gauge, ReadFault, Source, SourceSpec, open_source
from specjoule.reasons import Reason

DIRECTORY_PREFIX = "specjoule-meter-"
"""Name of the temporary directories in which meters keep their logs."""
_RETRY_NS = 100_000_000
"""Pause after a failed reading: a lost board is not asked a thousand times a second."""
_FROZEN_REFRESHES = 8
"""Refresh periods without a new value after which the counter counts as frozen; jitter is a tenth of one."""
_FROZEN_UNKNOWN_NS = 2_000_000_000
"""The same where no period is known yet: no board that we know refreshes less often than every second."""
_WALL_PERIOD_NS = 1_000_000_000
_DYING_NS = 2_000_000_000

Wait = Callable[[int], bool]
"""Waits until a time, ns; returns False when sampling shall end."""


@dataclass
class CounterLoop:
    """Polls one counter and writes its refreshes; the state of one counter's dating."""

    counter: Counter
    log: LogWriter
    clock: Clock
    schedule: FixedSchedule | RefreshSchedule
    due_ns: int = 0
    _last: tuple[float, ...] | None = None
    _last_start_ns: int = 0
    _changed_ns: int = 0
    _frozen_said_ns: int = 0

    def poll(self) -> None:
        """Read once, record what is new and set the time of the next read. Raises ReadFault."""
        start_ns = self.clock.now_ns()
        try:
            values = tuple(self.counter.read())
        except ReadFault:
            # No refresh is dated across a fault: the next value starts afresh.
            self._last = None
            self.due_ns = self.clock.now_ns() + _RETRY_NS
            raise
        end_ns = self.clock.now_ns()
        refresh_ns = self._record(values, start_ns, end_ns)
        self._last_start_ns = start_ns
        self.due_ns = self.schedule.next_ns(start_ns, end_ns, refresh_ns)

    def _record(self, values: tuple[float, ...], start_ns: int, end_ns: int) -> int | None:
        """Write a record where there is something to say; return the time of the refresh, if one is dated."""
        first = self._last is None
        moved = values != self._last
        since_ns: int | None = None
        native_ns = self.counter.native_refresh_ns
        if native_ns is not None:
            # The counter moves by itself between reads: a value is at most one native refresh old.
            since_ns = start_ns - native_ns if first else max(self._last_start_ns, start_ns - native_ns)
            if moved or self.counter.can_rest:
                self._write(since_ns, end_ns, values)
        elif moved and not first:  # the first value may have stood for long: when it came up is unknown
            since_ns = self._last_start_ns
            self._write(since_ns, end_ns, values)
        if moved:
            self._changed_ns = self._frozen_said_ns = end_ns
        else:
            self._check_frozen(end_ns)
        self._last = values
        return (since_ns + end_ns) // 2 if since_ns is not None and moved else None

    def _write(self, since_ns: int, end_ns: int, values: Sequence[float]) -> None:
        self.log.refreshes(since_ns, end_ns, dict(zip(self.counter.channels, values, strict=True)))

    def _check_frozen(self, now_ns: int) -> None:
        if self.counter.can_rest:
            return
        period_ns = self.counter.native_refresh_ns or self.schedule.refresh_ns()
        limit_ns = _FROZEN_UNKNOWN_NS if period_ns is None else max(_FROZEN_REFRESHES * period_ns, 4 * _RETRY_NS)
        if now_ns - self._frozen_said_ns > limit_ns:  # said again as long as it lasts, for windows that begin later
            self._frozen_said_ns = now_ns
            self.log.fault(now_ns, Reason.COUNTER_FROZEN, since_ns=self._changed_ns)


@dataclass
class Sampling:
    """All loops of one source: counters in the calling thread, gauges in another, so that none waits for the other."""

    source: Source
    log: LogWriter
    clock: Clock
    dense_ns: int
    loops: list[CounterLoop] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Give each counter its schedule."""
        for counter in self.source.counters:
            schedule: FixedSchedule | RefreshSchedule
            if counter.native_refresh_ns is None:
                schedule = RefreshSchedule(counter.poll_ns, self.dense_ns)
            else:
                schedule = FixedSchedule(counter.poll_ns)
            self.loops.append(CounterLoop(counter, self.log, self.clock, schedule))

    def run(self, wait: Wait) -> None:
        """Poll the counters until `wait` says no."""
        while True:
            loop = min(self.loops, key=lambda one: one.due_ns)
            if not wait(loop.due_ns):
                return
            try:
                loop.poll()
            except ReadFault as fault:
                self._record_fault(fault)

    def run_gauges(self) -> None:
        """Read the gauges in turn until `ended` is set; never while a counter's refresh is due."""
        schedules = [(gauge, FixedSchedule(gauge.period_ns)) for gauge in self.source.gauges]
        due = {id(gauge): 0 for gauge, _ in schedules}
        wall_due_ns = 0
        while not self.ended.is_set():
            start_ns = self.clock.now_ns()
            if start_ns >= wall_due_ns:
                self._wall_offset()
                wall_due_ns = start_ns + _WALL_PERIOD_NS
            if schedules:
                gauge, schedule = min(schedules, key=lambda pair: due[id(pair[0])])
                late_ns = start_ns - due[id(gauge)]
                if late_ns >= 0 and (late_ns > gauge.period_ns or not self._is_dense(start_ns)):
                    self._read_gauge(gauge)
                    due[id(gauge)] = schedule.next_ns(start_ns, self.clock.now_ns(), None)
                    continue
                pause_ns = max(min(due[id(gauge)], wall_due_ns) - start_ns, 2_000_000)
            else:
                pause_ns = wall_due_ns - start_ns
            self.ended.wait(pause_ns * 1e-9)

    def _is_dense(self, now_ns: int) -> bool:
        return any(loop.schedule.is_dense(now_ns) for loop in self.loops)

    def _read_gauge(self, gauge: Gauge) -> None:
        start_ns = self.clock.now_ns()
        try:
            values = gauge.read()
        except ReadFault:
            return  # the counter loop meets and records the same fault; a gauge has no say in the energy
        if values:
            self.log.samples(start_ns, self.clock.now_ns(), values)

    def _wall_offset(self) -> None:
        """Record wall clock minus monotonic clock: stepped clocks show, external meters can be aligned."""
        import time

        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        self.log.samples(before_ns, after_ns, {"wall_offset_ns": float(wall_ns - (before_ns + after_ns) // 2)})

    def _record_fault(self, fault: ReadFault) -> None:
        self.log.fault(self.clock.now_ns(), fault.reason)
        learnt = self.source.recover(fault)
        if learnt is not None:
            self.log.fault(self.clock.now_ns(), learnt)


def channels_of(source: Source) -> list[str]:
    """Return every name a log of this source may hold."""
    names = [name for counter in source.counters for name in counter.channels]
    names += [name for gauge in source.gauges for name in gauge.channels]
    faults = [reason.value for reason in Reason if reason.group in ("meter", "board")]
    return [*dict.fromkeys(names), "wall_offset_ns", *faults]


class Leash:
    """Standard input as the way to be told, and to notice that nobody is left to tell."""

    def __init__(self, source: Source, clock: Clock, parent_pid: int) -> None:
        self._source = source
        self._clock = clock
        self._parent = parent_pid
        self._fd = sys.stdin.fileno()
        self._buffer = b""
        self.told = False
        """Whether we were told to stop, rather than left alone."""

    def wait(self, until_ns: int) -> bool:
        """Sleep until a time, waking for commands; False when told to stop or when the parent is gone."""
        while True:
            left_ns = until_ns - self._clock.now_ns()
            ready, _, _ = select.select([self._fd], [], [], max(left_ns, 0) * 1e-9)
            if ready and not self._obey():
                return False
            if not ready and left_ns <= 0:
                return not self.is_orphan()
            # A thousandth of the wait may be left when select returns: sleep again rather than read early.

    def is_orphan(self) -> bool:
        """Return whether our parent is gone."""
        return os.getppid() != self._parent

    def wait_for_orphanage(self) -> None:
        """Wait until the parent is dead for good: its pipes close a little before that, and marks go by its life."""
        deadline_ns = self._clock.now_ns() + _DYING_NS
        while not self.is_orphan() and self._clock.now_ns() < deadline_ns:
            self._clock.sleep_s(0.02)
        self._clock.sleep_s(0.05)

    def _obey(self) -> bool:
        data = os.read(self._fd, 4096)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            command, _, argument = line.decode().partition(" ")
            if command == "stop":
                self.told = True
                return False
            if command == "attach":
                self._source.attach(int(argument) if argument else None)
        return True


def _remove_log(path: Path) -> None:
    """Remove the temporary directory that a killed parent could not; nobody else reads it."""
    if path.parent.name.startswith(DIRECTORY_PREFIX):
        shutil.rmtree(path.parent, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sampler until its parent lets go."""
    # The parent names itself: one that died while we started would otherwise leave us faithful to its heir.
    log_path, spec_text, parent_pid = arguments or sys.argv[1:]
    # An interrupt is for the parent to handle: it stops us when it has read what it needs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    spec = SourceSpec(**json.loads(spec_text))
    source = open_source(spec)
    try:
        info = source.open()
    except MeterError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    with contextlib.suppress(OSError):  # allowed to root only; without it, late polls are more frequent, not wrong
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    log = LogWriter(Path(log_path), channels_of(source), {"board": asdict(info)})
    clock = MonotonicClock()
    sampling = Sampling(source, log, clock, spec.dense_ns)
    gauges = threading.Thread(target=sampling.run_gauges, daemon=True)
    gauges.start()
    print(json.dumps({"board": asdict(info)}), flush=True)
    leash = Leash(source, clock, int(parent_pid))
    try:
        sampling.run(leash.wait)
    finally:
        sampling.ended.set()
        gauges.join(timeout=2)
        if not leash.told:
            leash.wait_for_orphanage()
        source.close()
        log.close()
        if not leash.told and leash.is_orphan():
            _remove_log(Path(log_path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
