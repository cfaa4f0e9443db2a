"""When to read a counter next: densely where its next refresh is due, sparsely elsewhere. Pure: times in, time out."""

from __future__ import annotations

from collections import deque

_HISTORY = 32
"""Intervals remembered: enough to see nearly the whole jitter, few enough to forget the coarse dates of learning."""
_LEARN = 4
"""Intervals seen before a forecast is trusted."""


class FixedSchedule:
    """Reads at multiples of one period; a late read does not shift the ones after it."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self._deadline_ns: int | None = None

    def next_ns(self, start_ns: int, end_ns: int, refresh_ns: int | None) -> int:
        """Return the time of the next read, given the last one and when the refresh that it found was, if any."""
        due = (self._deadline_ns or start_ns) + self.period_ns
        if due <= end_ns:  # late: skip what was missed, keep the phase
            due += ((end_ns - due) // self.period_ns + 1) * self.period_ns
        self._deadline_ns = due
        return due

    def refresh_ns(self) -> int | None:
        """Return nothing: this schedule learns no period."""
        return None

    def is_dense(self, now_ns: int) -> bool:
        """Return whether a read is time-critical now: never."""
        return False


class RefreshSchedule:
    """Learns the refresh period and its jitter, and reads every `dense_ns` only while a refresh is due.

    The forecast is the range of the last 32 intervals, widened by a fifth of itself and `dense_ns`. Between forecasts
    the counter is read every `poll_ns`, so that an early refresh is still found, only dated more widely.
    """

    def __init__(self, poll_ns: int, dense_ns: int) -> None:
        self.poll_ns = poll_ns
        self.dense_ns = min(dense_ns, poll_ns)
        self._intervals: deque[int] = deque(maxlen=_HISTORY)
        self._last_ns: int | None = None

    def next_ns(self, start_ns: int, end_ns: int, refresh_ns: int | None) -> int:
        """Return the time of the next read, given the last one and when the refresh that it found was, if any."""
        if refresh_ns is not None:
            self._learn(refresh_ns)
        window = self._due()
        if window is None:
            return max(end_ns, start_ns + self.poll_ns)
        early_ns, late_ns = window
        if end_ns < early_ns:
            # The last sparse read lands on the start of the dense stretch, never just short of it.
            coarse = start_ns + self.poll_ns
            return early_ns if coarse > early_ns - self.dense_ns else max(end_ns, coarse)
        if end_ns <= late_ns:
            return max(end_ns, start_ns + self.dense_ns)
        return max(end_ns, start_ns + self.poll_ns)

    def refresh_ns(self) -> int | None:
        """Return the median refresh interval learned so far, ns."""
        if len(self._intervals) < _LEARN:
            return None
        return sorted(self._intervals)[len(self._intervals) // 2]

    def is_dense(self, now_ns: int) -> bool:
        """Return whether a refresh is due at `now_ns`, so that nothing else should be read."""
        window = self._due()
        return window is not None and window[0] - self.poll_ns <= now_ns <= window[1]

    def _learn(self, refresh_ns: int) -> None:
        if self._last_ns is not None:
            interval = refresh_ns - self._last_ns
            known = self.refresh_ns()
            if known is None or interval < 3 * known:
                self._intervals.append(interval)
            else:  # a pause of ours or of the counter: no fact about its period, unless it repeats
                self._intervals.popleft()
        self._last_ns = refresh_ns

    def _due(self) -> tuple[int, int] | None:
        if self._last_ns is None or len(self._intervals) < _LEARN:
            return None
        low, high = min(self._intervals), max(self._intervals)
        margin = self.dense_ns + (high - low) // 5
        return self._last_ns + low - margin, self._last_ns + high + margin + 2 * self.dense_ns
