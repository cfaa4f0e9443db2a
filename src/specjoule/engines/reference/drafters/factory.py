"""From a catalogue entry to a drafter: the one list of schemes that this engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specjoule.engines.base import EngineInfeasible, LaunchSpec
from specjoule.engines.reference.drafters.autoregressive import AutoregressiveDrafter
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.drafters.layer_skip import choose_layers, skip_layers
from specjoule.engines.reference.drafters.ngram import NgramDrafter
from specjoule.engines.reference.drafters.plain import PlainDrafter
from specjoule.engines.reference.loading import Loaded, load, locate
from specjoule.engines.reference.model import RaggedModel
from specjoule.engines.reference.settings import ReferenceSettings
from specjoule.errors import ConfigurationError
from specjoule.reasons import Reason


@dataclass(frozen=True)
class Surroundings:
    """What a drafter is made from, beside its catalogue entry."""

    target: Loaded
    settings: ReferenceSettings
    device: str
    dtype: str


def make_drafter(spec: LaunchSpec, around: Surroundings) -> tuple[Drafter, dict[str, Any]]:
    """Return the drafter of a launch and how its settings were resolved.

    Raises EngineInfeasible (drafter_refused) for a scheme this engine does not run.
    """
    entry = spec.drafter
    where = f"drafter {entry.name}"
    if entry.verify_width != entry.draft_tokens + 1:
        raise ConfigurationError(
            f"{where}: verify_width {entry.verify_width} is not draft_tokens {entry.draft_tokens} + 1"
        )
    if entry.is_plain != (entry.draft_tokens == 0):
        raise ConfigurationError(f"{where}: scheme {entry.scheme} cannot propose {entry.draft_tokens} tokens")
    makers = {
        "plain": _plain,
        "plain-matched": _plain,
        "ngram": _ngram,
        "layer-skip": _layer_skip,
        "draft-model": _draft_model,
    }
    maker = makers.get(entry.scheme)
    if maker is None:
        raise EngineInfeasible(
            Reason.DRAFTER_REFUSED,
            f"{where}: the reference engine does not run scheme {entry.scheme}; it runs {', '.join(makers)}",
        )
    return maker(spec, around, where)


def _plain(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    return PlainDrafter(), {}


def _ngram(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    _refuse_unknown(spec, where, ("min_ngram", "max_ngram"))
    if spec.ngram_state != "cold":
        raise EngineInfeasible(
            Reason.DRAFTER_REFUSED,
            f"{where}: the reference engine matches n-grams inside each request only, so its state is always cold; "
            f"ngram_state {spec.ngram_state} needs another engine",
        )
    low = spec.drafter.settings.get("min_ngram", 1)
    high = spec.drafter.settings.get("max_ngram", 3)
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise ConfigurationError(f"{where}: needs 1 <= min_ngram <= max_ngram, not {low!r} and {high!r}")
    return NgramDrafter(spec.drafter.draft_tokens, low, high), {"min_ngram": low, "max_ngram": high}


def _layer_skip(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    _refuse_unknown(spec, where, ("kept_layers",))
    target = around.target
    kept = spec.drafter.settings.get("kept_layers")
    if kept is None:
        raise ConfigurationError(f"{where}: needs `kept_layers` (a count or a list of the {target.layers} layers)")
    chosen = choose_layers(kept, target.layers, where)
    thin = RaggedModel(
        skip_layers(target.model, chosen, where), target.layers, target.context, around.settings.prefill_tokens
    )
    return AutoregressiveDrafter(spec.drafter.draft_tokens, thin, None), {"kept_layers": chosen}


def _draft_model(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    _refuse_unknown(spec, where, ())
    checkpoint = spec.drafter.checkpoints.get(spec.model.name)
    if checkpoint is None:
        raise EngineInfeasible(Reason.DRAFTER_REFUSED, f"{where}: has no draft checkpoint for {spec.model.name}")
    place = locate(checkpoint, around.settings.drafter_path, where)
    loaded = load(place, around.device, around.dtype, around.settings.attention, where)
    if loaded.tokenizer.get_vocab() != around.target.tokenizer.get_vocab():
        raise EngineInfeasible(
            Reason.DRAFTER_REFUSED,
            f"{where}: its tokenizer differs from {spec.model.name}'s, so its proposals would mean other text",
        )
    model = RaggedModel(loaded.model, loaded.layers, loaded.context, around.settings.prefill_tokens)
    drafter = AutoregressiveDrafter(spec.drafter.draft_tokens, model, loaded.revision)
    return drafter, {"drafter_path": place.path, "drafter_layers": loaded.layers}


def _refuse_unknown(spec: LaunchSpec, where: str, known: tuple[str, ...]) -> None:
    if unknown := sorted(set(spec.drafter.settings) - set(known)):
        raise ConfigurationError(
            f"{where}: the reference engine's {spec.drafter.scheme} does not know {', '.join(map(repr, unknown))}; "
            f"it knows {', '.join(known) or 'no setting'}"
        )
