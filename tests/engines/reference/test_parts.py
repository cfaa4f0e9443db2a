"""The engine's own attention and output projection say what PyTorch's plain ones say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specjoule.engines.reference import ReferenceEngine

from .conftest import launch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.reference


def spelled_out(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Grouped-query attention as the formula has it; [n, q, heads, d]."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5 + mask
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("q", [1, 2, 8, 9, 40])
def test_attention_is_the_formula(n: int, q: int) -> None:
    from specjoule.engines.reference.attention import packed_attention

    torch.manual_seed(n * 100 + q)
    before = 21 if n == 1 else torch.tensor([[21], [0], [7]])
    visible = 21 + q
    query, store = torch.randn(n, 6, q, 8), torch.randn(2, n, 2, visible + 5, 8)
    key, value = store.narrow(3, 0, visible)
    limits = (before + torch.arange(q)).reshape(n, 1, q, 1)
    mask = torch.zeros(n, 1, q, visible).masked_fill_(torch.arange(visible) > limits, -torch.inf)
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True, training=False)
    out, weights = packed_attention(module, query, key, value, mask)
    assert weights is None and out.is_contiguous()
    torch.testing.assert_close(out, spelled_out(query, key, value, mask))


@pytest.mark.parametrize("equal", [True, False], ids=["one run of slots for all rows", "a place for each row"])
def test_a_pass_sees_its_own_row_and_nothing_beyond(tiny: Path, equal: bool) -> None:
    engine = ReferenceEngine()
    engine.start(launch(tiny, "plain", 1))
    target = engine._running().target
    lengths = (6, 6, 6) if equal else (6, 4, 2)
    prompts = [[5 + row + i for i in range(length)] for row, length in enumerate(lengths)]
    following = np.array([[40, 41], [50, 51], [60, 61]])
    alone = []
    for prompt, tokens in zip(prompts, following, strict=True):
        target.reserve(1, 12)
        target.prefill([prompt], 0)
        alone.append(target.step(tokens[None], target.lengths[:1], None, keep=2)[0].tolist())
    target.reserve(3, 12)
    # What an earlier wave left beyond each row's length must not be read.
    target.prefill([[90] * 12] * 3, 0)
    target.lengths[:] = 0
    for row, prompt in enumerate(prompts):
        target.prefill([prompt], row)
    assert target.step(following, target.lengths[:3], None, keep=2).tolist() == alone
    engine.stop()


def test_projection_is_the_layers_own(tiny: Path) -> None:
    from specjoule.engines.reference.projection import OneDnnProjection

    torch.manual_seed(0)
    for bias in (False, True):
        layer = torch.nn.Linear(48, 1000, bias=bias)
        fast = OneDnnProjection(layer)
        assert fast.weight is layer.weight
        for shape in ((1, 1, 48), (3, 5, 48)):
            hidden = torch.randn(shape)
            with torch.inference_mode():
                torch.testing.assert_close(fast(hidden), layer(hidden))
                strided = hidden.transpose(0, 1)
                torch.testing.assert_close(fast(strided), layer(strided))


@pytest.mark.parametrize(("dtype", "faster"), [("float32", True), ("bfloat16", False)])
def test_projection_only_in_float32(tiny: Path, dtype: str, faster: bool) -> None:
    from specjoule.engines.reference.loading import load, locate
    from specjoule.engines.reference.projection import OneDnnProjection
    from specjoule.study.catalogue import Checkpoint

    place = locate(Checkpoint(path=str(tiny)), None, "model tiny")
    model = load(place, "cpu", dtype, "packed", "model tiny").model
    assert isinstance(model.get_output_embeddings(), OneDnnProjection) is (
        faster and torch.backends.mkldnn.is_available()
    )
    assert isinstance(model.get_input_embeddings(), torch.nn.Embedding)
