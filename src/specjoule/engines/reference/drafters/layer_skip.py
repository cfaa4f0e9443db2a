"""A target's own layers, some left out: a drafter that needs no weights of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from specjoule.errors import ConfigurationError


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
