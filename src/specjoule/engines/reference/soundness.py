"""Does a model decode through the ragged cache as it does by itself? Asked of every model before it is measured.

Models differ in ways that no list of names keeps up with: attention sinks and biases that a kernel ignores, masks that
a model builds for itself from the length of the cache. Such a model would run, and write other text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specjoule.engines.reference.model import RaggedModel

PREFILLED = (4, 2)
VERIFIED = 2
LARGEST_DEVIATION = {torch.float32: 1e-3}
"""Root mean square of the difference over that of the logits; by dtype. Kernels differ by less, faults by far more."""
LARGEST_DEVIATION_16_BIT = 0.1


def deviation(model: Any, layers: int, context: int) -> float:
    """Return how far ragged passes are from the model's own uncached pass with its eager attention, relative.

    Two requests of different lengths are prefilled together, then both get several positions, then one alone gets one:
    the shapes that decoding has. The model's attention is as before afterwards. Raises what the model raises.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    total = min(max(PREFILLED) + VERIFIED + 1, context)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (len(PREFILLED), total))
    ragged = RaggedModel(model, layers, context, prefill_tokens=1)
    ragged.reserve(len(PREFILLED), total)
    ragged.prefill([row[:length].tolist() for row, length in zip(tokens, PREFILLED, strict=True)], 0)
    before = np.array(PREFILLED)
    verified = np.stack([row[length : length + VERIFIED] for row, length in zip(tokens, PREFILLED, strict=True)])
    several = ragged.logits(verified, before, None, keep=VERIFIED)
    one = ragged.logits(tokens[:1, total - 1 :], np.array([total - 1]), None, keep=1)
    truth = _uncached(model, tokens)
    pairs = [(one[0], truth[0, total - 1 :])]
    pairs += [(several[i], truth[i, length : length + VERIFIED]) for i, length in enumerate(PREFILLED)]
    difference = torch.cat([ours.float() - theirs.float() for ours, theirs in pairs])
    size = torch.cat([theirs.float() for _, theirs in pairs])
    return float(difference.square().mean().sqrt() / size.square().mean().sqrt().clamp_min(1e-30))


def is_sound(found: float, dtype: torch.dtype) -> bool:
    """Judge a deviation; NaN is none."""
    return found <= LARGEST_DEVIATION.get(dtype, LARGEST_DEVIATION_16_BIT)


def _uncached(model: Any, tokens: np.ndarray[Any, Any]) -> torch.Tensor:
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            ids = torch.from_numpy(tokens).to(model.device)
            logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
            return logits
    finally:
        model.set_attn_implementation(implementation)
