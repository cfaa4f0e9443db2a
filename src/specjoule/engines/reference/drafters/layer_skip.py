"""A target's own layers, some left out: a drafter that needs no weights of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from specjoule.errors import ConfigurationError


def choose_layers(kept: int | Sequence[int], layers: int, where: str) -> list[int]:
    """Return the layer indices to keep; a count leaves out layers spread over the middle.

    The first and the last layers carry most: with a count, neither of the two outermost on each side is left out
    while others remain.
    """
    if isinstance(kept, bool) or not isinstance(kept, int | list | tuple):
        raise ConfigurationError(f"{where}: kept_layers must be a count or a list of layer indices, not {kept!r}")
    if isinstance(kept, int):
        if not 1 <= kept <= layers:
            raise ConfigurationError(f"{where}: kept_layers is {kept}, but the model has {layers} layers")
        skipped = layers - kept
        protected = min(2, (layers - skipped) // 2)
        inner = layers - 2 * protected
        left_out = {protected + (2 * i + 1) * inner // (2 * skipped) for i in range(skipped)}
        return [i for i in range(layers) if i not in left_out][:kept]
    chosen = sorted(set(kept))
    if not chosen or chosen != list(kept) or chosen[0] < 0 or chosen[-1] >= layers:
        raise ConfigurationError(
            f"{where}: kept_layers must be rising indices between 0 and {layers - 1}, not {kept!r}"
        )
    return chosen


def skip_layers(model: Any, kept: Sequence[int], where: str) -> Any:
    """Return a causal model that runs the kept layers only and shares every weight with `model`."""
    prefix = model.base_model_prefix
    body = model._modules.get(prefix)
    if body is None or not isinstance(body._modules.get("layers"), torch.nn.ModuleList):
        raise ConfigurationError(
            f"{where}: {type(model).__name__} keeps its layers in an unusual place; layer skipping does not apply to it"
        )
    thin_body = _shallow(body)
    thin_body._modules["layers"] = torch.nn.ModuleList([body.layers[i] for i in kept])
    thin = _shallow(model)
    thin._modules[prefix] = thin_body
    return thin


def _shallow(module: Any) -> Any:
    """Copy a module's own table of children, not the children: nothing that is replaced shows in the original."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin
