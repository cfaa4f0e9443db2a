"""Faults on request, each as it would show in the field.

`engine.settings.faults` is a list of mappings: `kind`, optional selectors (`models`, `drafters`, `corpora`,
`concurrency`, `captures`: lists; `waves`: indices within a launch's batches), `probability` (per batch or start, drawn
from the block's seed), `times` (at most so often per opened board; a hang with `times: 1` succeeds on the fresh
launch), `share` (of a batch's requests) and `value` (what the kind takes). What a kind cannot heed is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, StrictBool

from specjoule.engines.checking import checked
from specjoule.engines.simulated.acceptance import SAMPLES, stable_seed
from specjoule.errors import ConfigurationError

When = Literal["board", "start", "batch"]
"""What a fault strikes: the board of a whole block, a launch's start, or a batch."""


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 < raw < math.inf:
        raise ValueError("must be a positive number")
    return float(raw)


def _count(raw: Any) -> int:
    if _number(raw) != int(raw):
        raise ValueError("must be a whole number of at least 1")
    return int(raw)


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(raw: Any) -> str:
        if raw not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(raw)

    return check


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    text: str
    takes: Callable[[Any], Any] | None = None
    """Checks `value`; None for a kind that takes none."""
    default: Any = None
    share: bool = False
    """Whether it strikes a share of a batch's requests."""
    when: When = "batch"


KINDS: Mapping[str, Kind] = {
    "early_eos": Kind(
        "a share of requests stops although EOS is to be ignored: fewer tokens than asked for", share=True
    ),
    "repeated_prompts": Kind("a share of requests answers the batch's first prompt again", share=True),
    "cache_hit": Kind("half of a share of requests' prompt tokens come from a prefix cache", share=True),
    "language_drift": Kind(
        "a share of answers is in another language (value: its code)", _one_of(*SAMPLES), "it", share=True
    ),
    "degenerate": Kind("a share of answers loops from its first words", share=True),
    "other_board": Kind("after `value` launches the meter sees another board", _count, 1, when="board"),
    "thermal_slowdown": Kind("the board slows down for heat to `value` MHz with the throttle bit set", _number, 1200.0),
    "hardware_slowdown": Kind("the board's power brake holds it at `value` MHz", _number, 1000.0),
    "drift": Kind("the board's power grows by `value` over each hour", _number, 0.10, when="board"),
    "capture_fallback": Kind("captured graphs were asked for and did not run"),
    "partial_batch": Kind("the server runs at most `value` requests at once (default: half of the batch)", _count),
    "counter_reset": Kind("the energy counter starts from zero in the middle of the batch"),
    "counter_frozen": Kind("the energy counter stands still for the middle third of the batch"),
    "meter_gap": Kind("the sampler saw nothing for the middle third of the batch"),
    "hang": Kind("the batch never ends; the watchdog gives up at low power"),
    "crash": Kind("the server ends in the middle of the batch"),
    "out_of_memory": Kind(
        "memory runs out: value 'load' or 'capture' (at the start) or 'run' (in the batch)",
        _one_of("load", "capture", "run"),
        "run",
    ),
    "width_change": Kind("the number of verified positions changes within the batch"),
    "foreign_process": Kind("another process computes on the board, drawing `value` W", _number, 60.0),
    "clock_not_obeyed": Kind("the clock stays at its maximum although another was locked"),
    "slow_client": Kind("stamps are late by `value` ms", _number, 20.0),
}

_STARTS = frozenset({"models", "drafters", "captures", "probability", "times"})
_HEEDED: Mapping[When, frozenset[str]] = {
    "board": frozenset({"models"}),
    "start": _STARTS,
    "batch": _STARTS | {"corpora", "concurrency", "waves"},
}
"""Selectors that mean something for what a fault strikes."""

Names = Annotated[tuple[str, ...], Field(min_length=1)]


class FaultConfig(BaseModel):
    """One requested fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    models: Names | None = None
    drafters: Names | None = None
    corpora: Names | None = None
    concurrency: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    captures: Annotated[tuple[StrictBool, ...], Field(min_length=1)] | None = None
    waves: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """Numbers of the batches since the launch's start, from 0."""
    probability: float = Field(default=1.0, ge=0, le=1)
    times: int | None = Field(default=None, ge=1)
    share: float = Field(default=0.5, gt=0, le=1)
    value: Any = None

    @property
    def when(self) -> When:
        """What it strikes."""
        return "start" if self.value in ("load", "capture") else KINDS[self.kind].when


@dataclass
class Faults:
    """The faults of one opened board, and how often each has struck."""

    configured: tuple[FaultConfig, ...]
    seed: str
    struck: dict[int, int] = field(default_factory=dict)

    def active(
        self,
        when: When,
        *,
        model: str,
        drafter: str,
        capture: bool,
        launch: int,
        corpus: str | None = None,
        concurrency: int | None = None,
        wave: int | None = None,
    ) -> dict[str, FaultConfig]:
        """Return the faults that strike here, by kind; each return counts as one strike."""
        out: dict[str, FaultConfig] = {}
        for i, fault in enumerate(self.configured):
            if (
                fault.when != when
                or fault.kind in out
                or not _selected(fault, model, drafter, capture, corpus, concurrency, wave)
            ):
                continue
            if fault.times is not None and self.struck.get(i, 0) >= fault.times:
                continue
            if fault.probability < 1:
                # With the launch: a fresh one begins with the batch that struck, and must not be bound to fail again.
                key = stable_seed(self.seed, i, model, drafter, launch, corpus, concurrency, wave)
                if np.random.default_rng(key).random() >= fault.probability:
                    continue
            self.struck[i] = self.struck.get(i, 0) + 1
            out[fault.kind] = fault
        return out


def _selected(
    fault: FaultConfig,
    model: str,
    drafter: str,
    capture: bool,
    corpus: str | None,
    concurrency: int | None,
    wave: int | None,
) -> bool:
    pairs = (
        (fault.models, model), (fault.drafters, drafter), (fault.captures, capture), (fault.corpora, corpus),
        (fault.concurrency, concurrency), (fault.waves, wave),
    )  # fmt: skip
    return all(allowed is None or here in allowed for allowed, here in pairs)


def parse_faults(raw: Any, seed: str) -> Faults:
    """Check `engine.settings.faults`. Raises ConfigurationError naming entry and key, and what would be valid."""
    if raw is None:
        return Faults((), seed)
    if not isinstance(raw, list | tuple):
        raise ConfigurationError("engine.settings.faults: must be a list of {kind: ..., ...}")
    return Faults(tuple(_parsed(item, f"engine.settings.faults[{i}]") for i, item in enumerate(raw)), seed)


def _parsed(item: Any, where: str) -> FaultConfig:
    fault = checked(FaultConfig, item, f"{where}.")
    kind = KINDS.get(fault.kind)
    if kind is None:
        raise ConfigurationError(f"{where}.kind: no '{fault.kind}'; valid: {', '.join(sorted(KINDS))}")
    if fault.value is not None and kind.takes is None:
        raise ConfigurationError(f"{where}.value: '{fault.kind}' takes none")
    try:
        value = kind.default if fault.value is None or kind.takes is None else kind.takes(fault.value)
    except ValueError as error:
        raise ConfigurationError(f"{where}.value: {error} (found {fault.value!r:.80})") from error
    fault = fault.model_copy(update={"value": value})
    heeded = _HEEDED[fault.when] | {"kind", "value"} | ({"share"} if kind.share else set())
    ignored = sorted(fault.model_fields_set - heeded)
    if ignored:
        raise ConfigurationError(
            f"{where}.{ignored[0]}: '{fault.kind}' strikes "
            + {"board": "a whole block", "start": "the start of a launch", "batch": "whole batches"}[fault.when]
            + " and cannot heed it"
        )
    return fault
