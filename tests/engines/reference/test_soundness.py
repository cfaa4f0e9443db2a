"""A model that would decode otherwise through the engine's cache, or whose checkpoint is not whole, is not measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specjoule.engines.base import Batch, EngineInfeasible
from specjoule.engines.reference import ReferenceEngine
from specjoule.errors import ConfigurationError
from specjoule.reasons import Reason

from .conftest import TEMPLATE, build_tiny, launch, prompts_of_lengths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "initializer_range": 0.4,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LAYERS: dict[str, Any] = {
    **SIZES,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture
def engine() -> Iterator[ReferenceEngine]:
    engine = ReferenceEngine()
    yield engine
    engine.stop()


def save(directory: Path, config: Any) -> Any:
    """Write a random model of `config` with the tiny tokenizer, and return it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(build_tiny(directory / "words", seed=0))
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(3.0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


def greedily(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    """Decode without any cache and with eager attention."""
    model.set_attn_implementation("eager")
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (lambda: transformers.GptOssConfig(**LAYERS, num_local_experts=4, num_experts_per_tok=2), "eager"),
        (lambda: transformers.Gemma2Config(**LAYERS), "eager"),
        (lambda: transformers.Qwen3Config(**LAYERS), "specjoule_packed"),
        (lambda: transformers.GPT2Config(**SIZES, n_embd=48, n_layer=2, n_head=6, n_positions=64), "specjoule_packed"),
    ],
    ids=["attention sinks", "softcap", "plain", "no groups"],
)
def test_what_the_packed_kernel_cannot_say_is_said_by_eager(
    engine: ReferenceEngine, tmp_path: Path, config: Any, attention: str
) -> None:
    model = save(tmp_path, config())
    capacity = engine.start(launch(tmp_path, "ngram", 4))
    assert capacity.resolved["attention"] == attention
    prompts = prompts_of_lengths((5, 9, 3))
    wave = engine.run(Batch(prompts, 12, ignore_eos=True))
    tokenizer = engine._running().loaded.tokenizer
    for request, prompt in zip(wave.requests, prompts, strict=True):
        tokens = tokenizer.apply_chat_template(prompt.chat(), tokenize=True, return_dict=False)
        assert request.output_token_ids == greedily(model, list(tokens), 12)


def test_sinks_are_refused_where_sdpa_is_asked_for(engine: ReferenceEngine, tmp_path: Path) -> None:
    save(tmp_path, transformers.GptOssConfig(**LAYERS, num_local_experts=4, num_experts_per_tok=2))
    with pytest.raises(EngineInfeasible, match="with attention sdpa: ") as caught:
        engine.start(launch(tmp_path, settings={"attention": "sdpa"}))
    assert caught.value.reason is Reason.UNSUPPORTED_MODEL


def test_an_attention_that_reads_what_it_may_not_is_found(
    engine: ReferenceEngine, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specjoule.engines.reference import attention
    from specjoule.engines.reference.loading import load, locate
    from specjoule.engines.reference.soundness import deviation, is_sound
    from specjoule.study.catalogue import Checkpoint

    place = locate(Checkpoint(path=str(tiny)), None, "model tiny")
    loaded = load(place, "cpu", "float32", "packed", "model tiny")
    assert deviation(loaded.model, loaded.layers, loaded.context) < 1e-5
    folded = attention.folded
    monkeypatch.setattr(
        attention, "folded", lambda q, k, v, mask, *rest: folded(q, k, v, torch.zeros_like(mask), *rest)
    )
    assert not is_sound(deviation(loaded.model, loaded.layers, loaded.context), torch.float32)
    assert not is_sound(float("nan"), torch.float32)
    # A model with grouped heads and a kernel at fault: the other attention is taken, and named.
    assert engine.start(launch(tiny)).resolved["attention"] == "eager"


def test_local_attention_bounds_the_context(engine: ReferenceEngine, tmp_path: Path) -> None:
    config = transformers.GPTNeoConfig(
        **SIZES, hidden_size=48, num_layers=2, num_heads=6, attention_types=[[["global", "local"], 1]], window_size=16
    )
    save(tmp_path, config)
    assert engine.start(launch(tmp_path)).resolved["context"] == 16


def test_encoders_are_refused(engine: ReferenceEngine, tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=64, vocab_size=96
    )
    save(tmp_path, config)
    with pytest.raises(EngineInfeasible, match=r"does not decode .* as it does by itself"):
        engine.start(launch(tmp_path))


def without_a_tensor(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})


def without_its_end(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])


def with_another_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{", encoding="utf-8")


def with_another_config(model: Path) -> None:
    (model / "config.json").write_text("{", encoding="utf-8")


def quantised_by_an_unknown_library(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_tensor, r"lacks 1 of the model's tensors.*layers\.1\.mlp\.up_proj"),
        (without_its_end, "cannot be read"),
        (with_another_tokenizer, "cannot be read"),
        (with_another_config, "cannot be read"),
        (quantised_by_an_unknown_library, "cannot be read"),
    ],
)
def test_a_checkpoint_at_fault_is_no_result(engine: ReferenceEngine, tmp_path: Path, damage: Any, message: str) -> None:
    """It can be mended, so it must not be stored as something that this model cannot do."""
    damage(build_tiny(tmp_path, seed=0))
    with pytest.raises(ConfigurationError, match=message):
        engine.start(launch(tmp_path))


def test_an_unknown_architecture_is_a_result(engine: ReferenceEngine, tmp_path: Path) -> None:
    build_tiny(tmp_path, seed=0)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}), encoding="utf-8")
    with pytest.raises(EngineInfeasible, match="unheard_of") as caught:
        engine.start(launch(tmp_path))
    assert caught.value.reason is Reason.UNSUPPORTED_MODEL


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (TEMPLATE + "{{ raise_exception('one turn only') }}", "chat template cannot render prompt p0 .*one turn only"),
        ("{# nothing #}", "makes no token of prompt p0"),
    ],
)
def test_a_chat_template_at_fault(engine: ReferenceEngine, tmp_path: Path, template: str, message: str) -> None:
    build_tiny(tmp_path, seed=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    engine.start(launch(tmp_path))
    with pytest.raises(ConfigurationError, match=message):
        engine.run(Batch(prompts_of_lengths((3,)), 4, ignore_eos=True))
