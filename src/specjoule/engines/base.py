"""What an engine owes the block runner: the contract behind which every server, library and simulation stands.

An engine is started for one launch (model, drafter, capture state, clock), warmed for every shape, and then runs one
batch ("wave") after the other. All time stamps are nanoseconds of the engine's clock, which is also the meter's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from specjoule.clock import Clock
from specjoule.errors import SpecJouleError
from specjoule.meters.base import I64
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason
from specjoule.study.catalogue import Drafter, Gpu, Model

FinishReason = Literal["length", "eos", "abort"]


class EngineInfeasible(SpecJouleError):
    """The configuration cannot run here (memory, refused drafter, unknown architecture): a result, never retried."""

    def __init__(self, reason: Reason, message: str, capacity_requests: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.capacity_requests = capacity_requests


class EngineTransient(SpecJouleError):
    """The environment failed (hang, crash, port): what was measured is kept, one fresh launch is tried."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineBug(SpecJouleError):
    """The engine broke its contract (a missing field, a wrong count): fails the job, is never read as zero."""


@dataclass(frozen=True)
class LaunchSpec:
    """Everything that one launch of an engine depends on."""

    model: Model
    gpu: Gpu
    drafter: Drafter
    capture: bool
    locked_mhz: int | None
    concurrencies: tuple[int, ...]
    """Every batch size this launch will be asked for: an engine that captures graphs captures exactly these."""
    max_new_tokens: int
    max_prompt_tokens: int | None
    seed: int
    settings: Mapping[str, Any]
    """The study's `engine.settings`: device, dtype, threads, interpreter ... as the engine documents them."""
    device_uuid: str | None
    log_path: Path
    cache_dir: Path
    weight_dtype: str = "float32"
    kv_dtype: str = "float32"
    ngram_state: Literal["cold", "warm"] = "cold"
    context_tokens: tuple[int, ...] = ()
    """Context lengths that prompts will be brought to beside their own: shapes to warm as well."""


@dataclass(frozen=True)
class Capacity:
    """What the engine says it can hold and how it resolved its settings; `resolved` is stored whole."""

    engine_version: str
    model_revision: str
    drafter_revision: str | None
    max_running_requests: int | None
    kv_tokens: int | None
    captured_batches: tuple[int, ...]
    resolved: Mapping[str, Any]
    measured_pid: int | None = None
    """Root of the process tree that does the work, for meters that count a process's CPU time."""


@dataclass(frozen=True)
class Batch:
    """One wave: prompts submitted at once, none later."""

    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    ignore_eos: bool
    context_tokens: int | None = None
    """Prompt length to bring every prompt to, where a sub-study of context asks for one."""
    filler: tuple[str, ...] = ()
    """With `context_tokens`: for each prompt the text to fill it up with, more than enough of it."""


@dataclass(frozen=True)
class RequestResult:
    """One request of a wave, from raw counts.

    committed_tokens = 1 (from the prefill) + accepted_draft_tokens + rounds - cut_tokens, where `rounds` counts the
    forward passes after the prefill that this request took part in; accepted_draft_tokens and the histogram are
    before the cut. Plain decoding has draft width 0: every round commits one token.
    """

    prompt_id: str
    prompt_tokens: int
    committed_tokens: int
    finish_reason: FinishReason
    first_eos_position: int | None
    """Index (0-based) of the first end-of-sequence token among the committed tokens; None if there is none."""
    rounds: int
    proposed_tokens: int
    accepted_draft_tokens: int
    acceptance_histogram: tuple[int, ...] | None
    """hist[i] = rounds in which exactly i drafts were kept; length draft_tokens + 1."""
    cut_tokens: int
    chunk_t_ns: Sequence[int] | I64
    """When each chunk arrived, in time order: a tuple, or an array where the engine has one."""
    chunk_tokens: Sequence[int] | I64
    cached_tokens: int
    output_token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class WaveResult:
    """What came back of one wave. `submit_ns` is when the batch was handed over, `end_ns` when its last token came."""

    submit_ns: int
    end_ns: int
    steps: int
    """Forward passes of the batch after the prefill."""
    requests: tuple[RequestResult, ...]
    verify_widths: tuple[int, ...]
    """Distinct numbers of positions verified per request and step within the wave; more than one is a changed width."""
    realized_batch_engine: float | None = None
    """Time-weighted mean batch by the engine's own count, where it has one."""
    peak_batch_engine: int | None = None
    capture_verified: bool | None = None
    """Captured graphs ran for target and drafter (True), did not (False), or the engine cannot tell (None)."""
    client_lag_ms: float | None = None
    """Largest delay of the client behind the stream, where a client is between engine and stamps."""
    faults: tuple[Reason, ...] = ()
    """What by the engine's own word is wrong with the wave; each is a reason against its rows."""
    notes: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """A server or library that generates text; see the module's text for the order of calls."""

    @property
    def clock(self) -> Clock:
        """The clock of every time stamp that this engine yields."""
        ...

    def start(self, spec: LaunchSpec) -> Capacity:
        """Start a launch and say what it can hold. Raises EngineInfeasible, EngineTransient or EngineBug."""
        ...

    def warm_up(self, concurrency: int, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        """Run one batch of this shape with prompts outside the pool, so that nothing is compiled in a window."""
        ...

    def flush(self) -> None:
        """Forget every cached prompt and n-gram, where the launch's settings ask for a cold start of each wave."""
        ...

    def run(self, batch: Batch) -> WaveResult:
        """Submit the batch at once, wait for its last token. Raises as `start` does."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return the engine's cumulative counters (kept before and after a wave); may be empty."""
        ...

    def stop(self) -> None:
        """End the launch and all it started; safe to call twice and after a failure."""
        ...
