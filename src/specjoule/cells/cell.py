"""A cell: one point of a study, and the digest of everything that could change its number."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Condition = tuple[bool, int | None, str | None]
"""Capture state, locked clock, instrumentation."""


@dataclass(frozen=True)
class Cell:
    """One point model x GPU x drafter x concurrency x corpus x seed (x capture x clock x replicate ...).

    `fingerprint` holds what is hashed besides the axes: checkpoints, engine, protocol. No host facts, no labels.
    """

    study: str
    model: str
    gpu: str
    drafter: str
    corpus: str
    concurrency: int
    seed: int
    replicate: int
    capture: bool
    locked_mhz: int | None
    context_tokens: int | None
    max_new_tokens: int
    waves: int
    pool_digest: str
    fingerprint: str
    """Canonical JSON of the settings shared by the cells of one model, drafter, board and engine."""
    grids: tuple[str, ...] = ()
    instrumentation: str | None = None
    """`minimal` in the sub-study of what the study's own flags cost; None everywhere else."""

    @cached_property
    def hash(self) -> str:
        """Digest (sha256, first 32 hex digits) of all that could change the number."""
        parts = [
            self.fingerprint, self.gpu, self.pool_digest, self.concurrency, self.seed, self.replicate, self.capture,
            self.locked_mhz, self.context_tokens, self.max_new_tokens, self.waves,
        ]  # fmt: skip
        text = json.dumps(parts + ([self.instrumentation] if self.instrumentation else []), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def partner_key(self) -> tuple[Any, ...]:
        """The axes that a drafter's cell shares with its plain partner."""
        return (
            self.model, self.gpu, self.corpus, self.concurrency, self.seed, self.replicate, self.capture,
            self.locked_mhz, self.context_tokens, self.max_new_tokens, self.instrumentation,
        )  # fmt: skip

    @property
    def condition(self) -> Condition:
        """What a plain launch and the drafters' launches compared with it agree in."""
        return (self.capture, self.locked_mhz, self.instrumentation)

    @property
    def launch_key(self) -> tuple[str, Condition]:
        """Cells with the same drafter and condition share one launch of the engine."""
        return (self.drafter, self.condition)

    @property
    def path(self) -> str:
        """Name of the raw file below `results/raw`: `{study}/{model}/{gpu}/{drafter}/{corpus}/c{n}/s{seed}.parquet`.

        Factors that are not at their usual value follow the seed: `s1-eager-1500mhz-ctx1024-r2.parquet`.
        """
        parts = [f"s{self.seed}"]
        if not self.capture and self.gpu != "cpu":
            parts.append("eager")
        if self.locked_mhz is not None:
            parts.append(f"{self.locked_mhz}mhz")
        if self.context_tokens is not None:
            parts.append(f"ctx{self.context_tokens}")
        if self.instrumentation is not None:
            parts.append(self.instrumentation)
        if self.replicate != 1:
            parts.append(f"r{self.replicate}")
        name = "-".join(parts)
        return f"{self.study}/{self.model}/{self.gpu}/{self.drafter}/{self.corpus}/c{self.concurrency}/{name}.parquet"
