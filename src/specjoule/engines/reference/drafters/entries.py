"""What a catalogue entry asks of this engine's drafters, checked without PyTorch: at load, and again at a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Drafter

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "plain-matched": (),
    "ngram": ("min_ngram", "max_ngram"),
    "layer-skip": ("kept_layers",),
    "draft-model": (),
}
"""Every scheme this engine runs, with the settings it knows."""

SKIP_DEPTHS = (1 / 6, 13 / 15)
"""Depths, as parts of the stack, that a count of kept layers thins out first.

Chosen on SmolLM2-135M (30 layers, 4 left out) by agreement with the whole model, on four shipped prompts each time and
so not held out: 69 % of 192 tokens without layers 4, 5, 25 and 26, 53 to 59 % without four neighbours in the middle;
on another 160 tokens 26 % without four spread evenly, 11 % without 22, 24, 26 and 28. Another model may want a list.
"""


def check_entry(drafter: Drafter, layers: int) -> None:
    """Refuse an entry that this engine could not run on a target of so many layers. Raises ConfigurationError."""
    where = f"drafter {drafter.name}"
    if drafter.scheme not in SETTINGS:
        raise ConfigurationError(
            f"{where}: the reference engine does not run scheme {drafter.scheme}; it runs {', '.join(SETTINGS)}"
        )
    known = SETTINGS[drafter.scheme]
    if unknown := sorted(set(drafter.settings) - set(known)):
        raise ConfigurationError(
            f"{where}: the reference engine's {drafter.scheme} does not know {', '.join(map(repr, unknown))}; "
            f"it knows {', '.join(known) or 'no setting'}"
        )
    if drafter.scheme == "ngram":
        ngram_lengths(drafter)
    if drafter.scheme == "layer-skip":
        kept_layers(drafter, layers)


def ngram_lengths(drafter: Drafter) -> tuple[int, int]:
    """Return the shortest and longest n-gram that is looked up. Raises ConfigurationError."""
    low, high = drafter.settings.get("min_ngram", 1), drafter.settings.get("max_ngram", 3)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (low, high))
    if not (whole and 1 <= low <= high):
        raise ConfigurationError(f"drafter {drafter.name}: needs 1 <= min_ngram <= max_ngram, not {low!r} and {high!r}")
    return low, high


def kept_layers(drafter: Drafter, layers: int) -> list[int]:
    """Return the indices of the target's layers that draft. Raises ConfigurationError."""
    where = f"drafter {drafter.name}"
    kept = drafter.settings.get("kept_layers")
    if kept is None:
        raise ConfigurationError(f"{where}: needs `kept_layers` (a count or a list of the {layers} layers)")
    return choose_layers(kept, layers, where)


def choose_layers(kept: int | Sequence[int], layers: int, where: str) -> list[int]:
    """Return the layer indices to keep.

    A count leaves out the layers nearest to `SKIP_DEPTHS`, the first and last layer only when no other remains.
    """
    if isinstance(kept, bool) or not isinstance(kept, int | list | tuple):
        raise ConfigurationError(f"{where}: kept_layers must be a count or a list of layer indices, not {kept!r}")
    if isinstance(kept, int):
        if not 1 <= kept <= layers:
            raise ConfigurationError(f"{where}: kept_layers is {kept}, but the model has {layers} layers")

        def expendable(layer: int) -> tuple[bool, float]:
            distance = min(abs(layer + 0.5 - depth * layers) for depth in SKIP_DEPTHS)
            return layer in (0, layers - 1), round(distance, 6)

        return sorted(sorted(range(layers), key=expendable)[layers - kept :])
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in kept)
    if not whole or not kept or sorted(set(kept)) != list(kept) or kept[0] < 0 or kept[-1] >= layers:
        raise ConfigurationError(
            f"{where}: kept_layers must be rising indices between 0 and {layers - 1}, not {kept!r}"
        )
    return list(kept)
