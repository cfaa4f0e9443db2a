"""From a catalogue entry to a drafter: the one list of schemes that this engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specjoule.engines.base import EngineInfeasible, LaunchSpec
from specjoule.engines.reference.drafters.autoregressive import AutoregressiveDrafter
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.drafters.entries import SETTINGS, check_entry, kept_layers, ngram_lengths
from specjoule.engines.reference.drafters.layer_skip import skip_layers
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
    if entry.scheme not in SETTINGS:
        raise EngineInfeasible(
            Reason.DRAFTER_REFUSED,
            f"{where}: the reference engine does not run scheme {entry.scheme}; it runs {', '.join(SETTINGS)}",
        )
    check_entry(entry, around.target.layers)
    makers = {
        "plain": _plain,
        "plain-matched": _plain,
        "ngram": _ngram,
        "layer-skip": _layer_skip,
        "draft-model": _draft_model,
    }
    return makers[entry.scheme](spec, around, where)


def _plain(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    return PlainDrafter(), {}


def _ngram(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    if spec.ngram_state != "cold":
        raise EngineInfeasible(
            Reason.DRAFTER_REFUSED,
            f"{where}: the reference engine matches n-grams inside each request only, so its state is always cold; "
            f"ngram_state {spec.ngram_state} needs another engine",
        )
    low, high = ngram_lengths(spec.drafter)
    return NgramDrafter(spec.drafter.draft_tokens, low, high), {"min_ngram": low, "max_ngram": high}


def _layer_skip(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
    target = around.target
    chosen = kept_layers(spec.drafter, target.layers)
    thin = RaggedModel(
        skip_layers(target.model, chosen, where), target.layers, target.context, around.settings.prefill_tokens
    )
    return AutoregressiveDrafter(spec.drafter.draft_tokens, thin, None), {"kept_layers": chosen}


def _draft_model(spec: LaunchSpec, around: Surroundings, where: str) -> tuple[Drafter, dict[str, Any]]:
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
