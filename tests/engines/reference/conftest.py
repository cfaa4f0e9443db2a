"""A tiny random model that decodes in milliseconds, the embedded model, and plain greedy decoding to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specjoule.engines.base import LaunchSpec
from specjoule.prompts.corpus import Prompt
from specjoule.study.catalogue import Architecture, Checkpoint, DraftCheckpoint, Drafter, Gpu, Model

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def prompt(text: str, name: str = "p") -> Prompt:
    return Prompt(id=name, corpus="test", language="en", messages=(("user", text),), digest=name, license="CC0-1.0")


def prompts_of_lengths(lengths: Sequence[int], seed: int = 0) -> tuple[Prompt, ...]:
    """Prompts of the tiny model's words, so that `lengths` are token counts."""
    made = []
    for i, length in enumerate(lengths):
        words = [f"w{(seed * 31 + 7 * i + 13 * j * j + j) % 90}" for j in range(length)]
        made.append(prompt(" ".join(words), f"p{i}"))
    return tuple(made)


def build_tiny(directory: Path, seed: int, eos: int | list[int] = 2, **config: Any) -> Path:
    """Write a random Llama with a word-level tokenizer of 96 tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 256,
        "initializer_range": 0.4,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **config}, bos_token_id=1, eos_token_id=eos, pad_token_id=0))
    model.generation_config.eos_token_id = eos
    model.save_pretrained(directory)
    vocabulary = {"<unk>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i + 3 for i in range(93)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), seed=0)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer; it mostly disagrees with `tiny`."""
    return build_tiny(tmp_path_factory.mktemp("draft"), seed=1, num_hidden_layers=1)


@pytest.fixture(scope="session")
def embedded() -> Path:
    path = Path(os.environ.get("SPECJOULE_EMBEDDED_MODEL", ROOT / ".cache/models/smollm2-135m-instruct"))
    if not (path / "config.json").is_file():
        pytest.skip(f"no embedded model at {path}; python -m specjoule.engines.embedded --output {path}")
    return path


def launch(
    path: Path | str,
    scheme: Any = "plain",
    width: int = 1,
    *,
    draft: Path | None = None,
    draft_settings: dict[str, Any] | None = None,
    checkpoint: Checkpoint | None = None,
    **changes: Any,
) -> LaunchSpec:
    """A launch on the CPU; `changes` replace fields of the spec."""
    entry = Drafter(
        name=scheme,
        scheme=scheme,
        draft_tokens=width - 1,
        verify_width=width,
        settings=draft_settings or {},
        checkpoints={"tiny": DraftCheckpoint(path=str(draft))} if draft else {},
    )
    model = Model(
        name="tiny",
        family="llama",
        checkpoint=checkpoint or Checkpoint(path=str(path)),
        architecture=Architecture(
            parameters=1e5, hidden_size=48, layers=4, query_heads=6, kv_heads=2, head_dim=8, vocabulary=96
        ),
        weight_dtype="float32",
        kv_dtype="float32",
    )
    fields: dict[str, Any] = {
        "model": model,
        "gpu": Gpu(name="cpu", device="cpu", product="cpu"),
        "drafter": entry,
        "capture": False,
        "locked_mhz": None,
        "concurrencies": (1, 8),
        "max_new_tokens": 32,
        "max_prompt_tokens": None,
        "seed": 0,
        "settings": {},
        "device_uuid": None,
        "log_path": Path(os.devnull),
        "cache_dir": Path(os.devnull),
    }
    return LaunchSpec(**{**fields, **changes})


@pytest.fixture(scope="session")
def greedy() -> Callable[..., list[tuple[int, ...]]]:
    """Plain greedy decoding by transformers' `generate`, each prompt by itself, EOS ignored."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    loaded: dict[Path, tuple[Any, Any]] = {}
    known: dict[Any, tuple[int, ...]] = {}

    def decode(path: Path, prompts: Sequence[Prompt], new_tokens: int) -> list[tuple[int, ...]]:
        if path not in loaded:
            loaded[path] = (
                AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval(),
                AutoTokenizer.from_pretrained(path),
            )
            loaded[path][0].generation_config.eos_token_id = None
            loaded[path][0].generation_config.pad_token_id = 0
        model, tokenizer = loaded[path]
        texts = []
        for item in prompts:
            key = (path, item.messages, new_tokens)
            if key not in known:
                inputs = tokenizer.apply_chat_template(
                    item.chat(), add_generation_prompt=True, return_dict=True, return_tensors="pt"
                )
                inputs.pop("token_type_ids", None)
                with torch.inference_mode():
                    out = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
                known[key] = tuple(out[0, inputs["input_ids"].shape[1] :].tolist())
            texts.append(known[key])
        return texts

    return decode
