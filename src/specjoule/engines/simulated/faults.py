"""Faults on request, each as it would show in the field.

`engine.settings.faults` is a list of mappings: `kind`, optional selectors (`models`, `drafters`, `corpora`,
`concurrency`, `captures`: lists; `waves`: indices within a launch's batches), `probability` (per batch, drawn from the
block's seed), `times` (at most so often per opened board; a hang with `times: 1` succeeds on the fresh launch), `share`
(of a batch's requests) and `value` (what the kind takes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specjoule.engines.simulated.acceptance import stable_seed
from specjoule.errors import ConfigurationError

KINDS: Mapping[str, str] = {
    "early_eos": "a share of requests stops although EOS is to be ignored: fewer tokens than asked for",
    "repeated_prompts": "a share of requests answers the batch's first prompt again",
    "cache_hit": "half of a share of requests' prompt tokens come from a prefix cache",
    "language_drift": "a share of answers is in another language (value: its code, default 'it')",
    "degenerate": "a share of answers loops from its first words",
    "other_board": "after `value` launches (default 1) the meter sees another board",
    "thermal_slowdown": "the board slows down for heat to `value` MHz (default 1200) with the throttle bit set",
    "hardware_slowdown": "the board's power brake holds it at `value` MHz (default 1000)",
    "drift": "the board's power grows by `value` (default 0.10) over each hour",
    "capture_fallback": "captured graphs were asked for and did not run",
    "partial_batch": "the server runs at most `value` requests at once (default half of the batch)",
    "counter_reset": "the energy counter starts from zero in the middle of the batch",
    "counter_frozen": "the energy counter stands still for the middle third of the batch",
    "meter_gap": "the sampler saw nothing for the middle third of the batch",
    "hang": "the batch never ends; the watchdog gives up at low power",
    "crash": "the server ends in the middle of the batch",
    "out_of_memory": "memory runs out: value 'load', 'capture' (at the start) or 'run' (default, in the batch)",
    "width_change": "the number of verified positions changes within the batch",
    "foreign_process": "another process computes on the board, drawing `value` W (default 60)",
    "clock_not_obeyed": "the clock stays at its maximum although another was locked",
    "slow_client": "stamps are late by `value` ms (default 20)",
}


class FaultConfig(BaseModel):
    """One requested fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    models: tuple[str, ...] | None = None
    drafters: tuple[str, ...] | None = None
    corpora: tuple[str, ...] | None = None
    concurrency: tuple[int, ...] | None = None
    captures: tuple[bool, ...] | None = None
    waves: tuple[int, ...] | None = None
    """Numbers of the batches since the launch's start, from 0."""
    probability: float = Field(default=1.0, ge=0, le=1)
    times: int | None = Field(default=None, ge=1)
    share: float = Field(default=0.5, gt=0, le=1)
    value: Any = None


@dataclass
class Faults:
    """The faults of one opened board, and how often each has struck."""

    configured: tuple[FaultConfig, ...]
    seed: str
    struck: dict[int, int] = field(default_factory=dict)

    def active(
        self,
        kinds: Iterable[str],
        *,
        model: str,
        drafter: str,
        capture: bool,
        corpus: str | None,
        concurrency: int | None,
        wave: int | None,
    ) -> dict[str, FaultConfig]:
        """Return the faults of these kinds that strike here, by kind; each return counts as one strike."""
        out: dict[str, FaultConfig] = {}
        wanted = set(kinds)
        for i, fault in enumerate(self.configured):
            if (
                fault.kind not in wanted
                or fault.kind in out
                or not _selected(fault, model, drafter, capture, corpus, concurrency, wave)
            ):
                continue
            if fault.times is not None and self.struck.get(i, 0) >= fault.times:
                continue
            if fault.probability < 1:
                u = np.random.default_rng(stable_seed(self.seed, i, model, drafter, corpus, concurrency, wave)).random()
                if u >= fault.probability:
                    continue
            self.struck[i] = self.struck.get(i, 0) + 1
            out[fault.kind] = fault
        return out

    def first(self, kind: str) -> FaultConfig | None:
        """Return the first configured fault of a kind, selected or not (faults of the board itself)."""
        return next((f for f in self.configured if f.kind == kind), None)


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
    """Check `engine.settings.faults`. Raises ConfigurationError naming the entry and, for a kind, the valid ones."""
    if raw is None:
        return Faults((), seed)
    if not isinstance(raw, list | tuple):
        raise ConfigurationError("engine.settings.faults: must be a list of {kind: ..., ...}")
    out = []
    for i, item in enumerate(raw):
        try:
            fault = FaultConfig.model_validate(item)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"engine.settings.faults[{i}].{key}: {first['msg']}") from error
        if fault.kind not in KINDS:
            raise ConfigurationError(
                f"engine.settings.faults[{i}].kind: no '{fault.kind}'; valid: {', '.join(sorted(KINDS))}"
            )
        out.append(fault)
    return Faults(tuple(out), seed)
