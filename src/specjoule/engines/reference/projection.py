"""The projection onto the vocabulary by oneDNN, on a CPU in float32.

It is the largest matrix of a model by far, and few rows meet it. PyTorch gives a dense product in float32 to its BLAS;
oneDNN, which PyTorch brings along, takes 1.2 to 2 times less time for this one (`benchmarks/reference_parts.py`).
For the matrices inside the layers there is nothing to gain.
"""

from __future__ import annotations

from typing import Any

import torch


class OneDnnProjection(torch.nn.Module):  # type: ignore[misc]
    """A linear layer's product, from a copy of its weight that oneDNN owns."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Copy the weight [vocabulary, hidden], float32 on the CPU; the layer itself stays, it may be tied."""
        super().__init__()
        self.linear = linear
        self._weight = linear.weight.detach().to_mkldnn()
        self._bias = None if linear.bias is None else linear.bias.detach().to_mkldnn()

    @property
    def weight(self) -> torch.Tensor:
        """Return the layer's own weight, for models that look at it."""
        return self.linear.weight

    @property
    def bias(self) -> torch.Tensor | None:
        """Return the layer's own bias."""
        return self.linear.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., vocabulary] of hidden [..., hidden]."""
        return torch.nn.functional.linear(hidden.contiguous().to_mkldnn(), self._weight, self._bias).to_dense()


def speed_up_projection(model: Any) -> bool:
    """Give a float32 model on the CPU a faster output projection; say whether it could be done."""
    layer = model.get_output_embeddings()
    if type(layer) is not torch.nn.Linear or layer.weight.device.type != "cpu" or layer.weight.dtype != torch.float32:
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    model.set_output_embeddings(OneDnnProjection(layer))
    return True
