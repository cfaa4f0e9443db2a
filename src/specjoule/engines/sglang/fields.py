"""Strict reading of what the server answers: a missing or misshapen field is an error, never a zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specjoule.engines.base import EngineBug


def need(where: str, content: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """Return `content[key]`. Raises EngineBug if it is missing or of another type (a bool is no number)."""
    if key not in content:
        raise EngineBug(f"{where} lacks '{key}': another release of the server, or flags that hide it")
    value = content[key]
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        names = " or ".join(k.__name__ for k in kinds)
        raise EngineBug(f"{where}: '{key}' is {value!r}, not {names}")
    return value


def need_count(where: str, content: Mapping[str, Any], key: str) -> int:
    """Return a count. Raises EngineBug if it is missing, no integer or negative."""
    value = need(where, content, key, int)
    if value < 0:
        raise EngineBug(f"{where}: '{key}' is {value}, a count cannot be negative")
    return int(value)


@dataclass(frozen=True)
class DecodeMoments:
    """The server's cumulative moments of its decode steps: steps, batch, microseconds, batch², batch x microseconds."""

    steps: float
    batch: float
    step_us: float
    batch_squared: float
    batch_us: float
    generated: float

    def __sub__(self, before: DecodeMoments) -> DecodeMoments:
        return DecodeMoments(
            self.steps - before.steps,
            self.batch - before.batch,
            self.step_us - before.step_us,
            self.batch_squared - before.batch_squared,
            self.batch_us - before.batch_us,
            self.generated - before.generated,
        )

    @property
    def mean_batch(self) -> float | None:
        """Time-weighted mean batch of the counted steps; None where none was counted.

        The server leaves out the first step after each prefill and steps of 2 s or more.
        """
        return self.batch_us / self.step_us if self.step_us > 0 else None


NO_STEPS = DecodeMoments(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Loads:
    """One answer of `/v1/loads`."""

    running: int
    waiting: int
    kv_tokens: int
    max_running_requests: int
    moments: DecodeMoments
    prefill_tokens: int
    prefill_busy_us: int

    def counters(self) -> dict[str, float]:
        """Return the cumulative counters, as kept before and after a wave."""
        return {
            "decode_steps": self.moments.steps,
            "decode_batch_sum": self.moments.batch,
            "decode_us": self.moments.step_us,
            "decode_batch_us": self.moments.batch_us,
            "decode_generated": self.moments.generated,
            "prefill_tokens": float(self.prefill_tokens),
            "prefill_busy_us": float(self.prefill_busy_us),
            "running": float(self.running),
            "waiting": float(self.waiting),
        }


def read_loads(content: Any) -> Loads:
    """Read `/v1/loads`. `decode_moments` is null only while the server has counted no step at all."""
    where = "/v1/loads"
    if not isinstance(content, Mapping):
        raise EngineBug(f"{where}: a JSON object is expected, not {content!r}")
    ranks = need(where, content, "loads", list)
    if len(ranks) != 1 or not isinstance(ranks[0], Mapping):
        raise EngineBug(f"{where}: one rank is expected, not {len(ranks)}")
    load = ranks[0]
    raw = need(where, load, "decode_moments", list, type(None))
    if raw is not None and (len(raw) != 6 or not all(isinstance(v, int | float) for v in raw)):
        raise EngineBug(f"{where}: 'decode_moments' holds {raw!r}, not six numbers")
    return Loads(
        running=need_count(where, load, "num_running_reqs"),
        waiting=need_count(where, load, "num_waiting_reqs"),
        kv_tokens=need_count(where, load, "max_total_num_tokens"),
        max_running_requests=need_count(where, load, "max_running_requests"),
        moments=NO_STEPS if raw is None else DecodeMoments(*(float(v) for v in raw)),
        prefill_tokens=need_count(where, load, "total_prefill_uncached_tokens"),
        prefill_busy_us=need_count(where, load, "total_prefill_busy_us"),
    )


@dataclass(frozen=True)
class ServerInfo:
    """One answer of `/server_info`; `resolved` is all of it, stored whole."""

    version: str
    kv_tokens: int
    running_limit: int
    captured_batches: tuple[int, ...]
    resolved: Mapping[str, Any]


def read_server_info(content: Any) -> ServerInfo:
    """Read `/server_info`."""
    where = "/server_info"
    if not isinstance(content, Mapping):
        raise EngineBug(f"{where}: a JSON object is expected, not {content!r}")
    states = need(where, content, "internal_states", list)
    if len(states) != 1 or not isinstance(states[0], Mapping):
        raise EngineBug(f"{where}: one internal state is expected, not {len(states)}")
    state = states[0]
    inner = f"{where} internal_states[0]"
    batches = need(inner, state, "decode_cuda_graph_bs", list, type(None))
    resolved = {k: v for k, v in content.items() if k != "internal_states"}
    need(inner, state, "memory_usage", Mapping)  # type: ignore[type-abstract]
    return ServerInfo(
        version=str(need(where, content, "version", str)),
        kv_tokens=need_count(where, content, "max_total_num_tokens"),
        running_limit=need_count(inner, state, "effective_max_running_requests_per_dp"),
        captured_batches=tuple(sorted(int(b) for b in batches or ())),
        resolved={**resolved, "internal_state": {k: state[k] for k in _STATE_KEYS if k in state}},
    )


_STATE_KEYS = ("memory_usage", "decode_cuda_graph_bs", "decode_cuda_graph_memory_gb", "startup_time")
