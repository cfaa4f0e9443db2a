"""Prompts brought to a context length, by token ids: exact, whatever the tokenizer does at the seams."""

from __future__ import annotations

from collections.abc import Sequence

from specjoule.engines.base import EngineBug, EngineInfeasible
from specjoule.reasons import Reason


def frame(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return what two chats of one user's turn, with nothing in common, begin and end with: the template's own ids."""
    shorter = min(len(one), len(other))
    opening = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    closing = next((i for i in range(shorter - opening) if one[-1 - i] != other[-1 - i]), shorter - opening)
    return list(one[:opening]), list(one[len(one) - closing :])


def fill_up(name: str, own: Sequence[int], opening: Sequence[int], spare: Sequence[int], tokens: int) -> list[int]:
    """Return the prompt `own` with as much of `spare` behind its `opening` as makes it `tokens` long.

    Raises EngineInfeasible for a prompt that is longer or begins otherwise than with a user's turn.
    """
    if len(own) > tokens:
        raise EngineInfeasible(
            Reason.CONTEXT_TOO_LONG,
            f"prompt '{name}' has {len(own)} tokens of its own, more than a context of {tokens}",
        )
    if list(own[: len(opening)]) != list(opening):
        raise EngineInfeasible(
            Reason.CONTEXT_NOT_SUPPORTED, f"prompt '{name}' does not begin with a user's turn and cannot be filled up"
        )
    missing = tokens - len(own)
    if len(spare) < missing:
        raise EngineBug(f"{len(spare)} tokens are too few to fill '{name}' up by {missing}")
    return [*own[: len(opening)], *spare[:missing], *own[len(opening) :]]
