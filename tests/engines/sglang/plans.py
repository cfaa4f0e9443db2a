"""What the protocol double will answer: for each request its chunks and counts, scripted or by the reference engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.engines.sglang.tiny import EOS_ID

if TYPE_CHECKING:  # a scripted double starts in half a second because nothing of this is imported
    from specjoule.engines.base import LaunchSpec


@dataclass(frozen=True)
class Plan:
    """One request's whole answer: the first chunk is the prefill's, then one a round; counts are before the cut."""

    chunks: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    accepted: int
    histogram: tuple[int, ...]
    ended_by_eos: bool = False

    @property
    def rounds(self) -> int:
        """Rounds after the prefill."""
        return len(self.chunks) - 1

    @property
    def tokens(self) -> int:
        """Tokens delivered."""
        return sum(len(c) for c in self.chunks)


class Backend(Protocol):
    """Makes plans out of token ids."""

    eos_ids: frozenset[int]

    def tokenize(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the ids of a chat."""
        ...

    def plan(self, prompts: Sequence[list[int]], limit: int, ignore_eos: bool) -> list[Plan]:
        """Return one plan a prompt."""
        ...

    def flush(self) -> None:
        """Forget what was seen."""
        ...


class Scripted:
    """Acceptance drawn from the prompt's own ids: no model, no torch, the same every time."""

    def __init__(self, width: int, rate: float = 0.6) -> None:
        self.width = width
        self.rate = rate
        self.eos_ids = frozenset({EOS_ID, 256})

    def tokenize(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the bytes of the chat."""
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages)
        return list(text.encode())

    def plan(self, prompts: Sequence[list[int]], limit: int, ignore_eos: bool) -> list[Plan]:
        """Return plans whose every round keeps a geometric number of drafts."""
        return [self._one(ids, limit) for ids in prompts]

    def flush(self) -> None:
        """Nothing is remembered."""

    def _one(self, ids: list[int], limit: int) -> Plan:
        rng = random.Random(str(ids))
        chunks = [(rng.randrange(97, 123),)]
        histogram = [0] * self.width
        accepted, left = 0, limit - 1
        while left > 0:
            kept = 0
            while kept < self.width - 1 and rng.random() < self.rate:
                kept += 1
            accepted += kept
            histogram[kept] += 1
            chunks.append(tuple(rng.randrange(97, 123) for _ in range(min(kept + 1, left))))
            left -= kept + 1
        texts = tuple(bytes(c).decode() for c in chunks)
        return Plan(tuple(chunks), texts, accepted, tuple(histogram))


class Reference:
    """Acceptance by the reference engine: a real small model, real drafts, exact greedy verification."""

    def __init__(self, checkpoint: Path, algorithm: str | None, width: int) -> None:
        from specjoule.engines.reference.engine import ReferenceEngine

        self._engine = ReferenceEngine()
        self._engine.start(self._spec(checkpoint, algorithm, width))
        assert self._engine._launch is not None
        self._launch: Any = self._engine._launch
        self._width = width
        self.eos_ids = frozenset(self._launch.loaded.eos_ids)

    def tokenize(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the ids of a chat under the model's template."""
        ids = self._launch.loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return [int(i) for i in ids]

    def plan(self, prompts: Sequence[list[int]], limit: int, ignore_eos: bool) -> list[Plan]:
        """Run the wave through the reference engine and keep what it committed, chunk by chunk."""
        from specjoule.clock import MonotonicClock
        from specjoule.engines.reference.requests import RequestState
        from specjoule.engines.reference.wave import Wave

        drafts = self._width - 1
        states = [RequestState(i, f"r{i}", list(ids), len(ids), limit, drafts) for i, ids in enumerate(prompts)]
        wave = Wave(self._launch.target, self._launch.drafter, MonotonicClock(), self.eos_ids, ignore_eos)
        wave.run(states)
        return [self._plan_of(state) for state in states]

    def flush(self) -> None:
        """Forget the drafter's state."""
        self._engine.flush()

    def _plan_of(self, state: Any) -> Plan:
        output, chunks, at = state.tokens[state.prompt_tokens :], [], 0
        for size in state.chunk_tokens:
            chunks.append(tuple(output[at : at + size]))
            at += size
        decode = self._launch.loaded.tokenizer.decode
        texts = tuple(decode(list(c), skip_special_tokens=True) for c in chunks)
        return Plan(tuple(chunks), texts, state.accepted, tuple(state.histogram), state.ended_by == "eos")

    def _spec(self, checkpoint: Path, algorithm: str | None, width: int) -> LaunchSpec:
        from specjoule.engines.base import LaunchSpec
        from specjoule.study.catalogue import Architecture, Checkpoint, Drafter, Gpu, Model

        scheme, settings = "plain", {}
        if algorithm == "NGRAM":
            scheme, settings = "ngram", {"max_ngram": 3, "min_ngram": 1}
        elif algorithm is not None:
            scheme, settings = "layer-skip", {"kept_layers": 26}
        return LaunchSpec(
            model=Model(
                name="reference",
                family="any",
                checkpoint=Checkpoint(path=str(checkpoint), revision="double"),
                architecture=Architecture(
                    parameters=1e8, hidden_size=576, layers=30, query_heads=9, kv_heads=3, head_dim=64, vocabulary=49152
                ),
            ),
            gpu=Gpu(name="cpu", device="cpu", product="host processor"),
            drafter=Drafter(
                name=scheme,
                scheme=scheme,
                draft_tokens=width - 1,
                verify_width=width,
                settings=settings,  # type: ignore[arg-type]
            ),
            capture=False,
            locked_mhz=None,
            concurrencies=(1,),
            max_new_tokens=512,
            max_prompt_tokens=None,
            seed=0,
            settings={"device": "cpu", "threads": 1},
            device_uuid=None,
            log_path=Path("/dev/null"),
            cache_dir=checkpoint,
        )
