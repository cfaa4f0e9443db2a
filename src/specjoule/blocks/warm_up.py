"""Prompts for warm-up batches: outside every pool, so that nothing measured was seen before."""

from __future__ import annotations

from specjoule.prompts.corpus import Prompt, canonical_digest

_SUBJECTS = (
    "the tides of a small harbour", "how a paper mill works", "the rules of an invented card game",
    "a week in a lighthouse", "what a surveyor carries", "the making of a wooden boat", "a market in the rain",
    "how bells are tuned",
)  # fmt: skip


def warm_up_prompts(count: int) -> list[Prompt]:
    """Return `count` distinct prompts; each is one user turn."""
    prompts = []
    for i in range(count):
        text = f"Warm-up text number {i + 1}: describe {_SUBJECTS[i % len(_SUBJECTS)]} in plain words."
        messages = (("user", text),)
        prompts.append(
            Prompt(
                id=f"warm-up-{i + 1}",
                corpus="warm-up",
                language="en",
                messages=messages,
                digest=canonical_digest([{"role": "user", "content": text}]),
                license="CC0-1.0",
            )
        )
    return prompts
