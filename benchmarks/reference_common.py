"""What the benchmarks of the reference engine share: the embedded model, launches, plain `generate`, the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjoule.engines.base import LaunchSpec
from specjoule.prompts.corpus import Prompt
from specjoule.study.catalogue import Architecture, Checkpoint, Drafter, Gpu, Model

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = Path(os.environ.get("SPECJOULE_EMBEDDED_MODEL", ROOT / ".cache/models/smollm2-135m-instruct"))
KEPT_LAYERS = 26


def embedded_model(dtype: str = "float32") -> Model:
    """Return the catalogue entry of the embedded model."""
    return Model(
        name="smollm2-135m",
        family="smollm2",
        checkpoint=Checkpoint(path=str(EMBEDDED)),
        architecture=Architecture(
            parameters=134.5e6, hidden_size=576, layers=30, query_heads=9, kv_heads=3, head_dim=64, vocabulary=49152
        ),
        weight_dtype=dtype,
        kv_dtype=dtype,
    )


def launch(drafter: Drafter, model: Model | None = None, **settings: Any) -> LaunchSpec:
    """Return a launch on the CPU with one thread."""
    model = model or embedded_model()
    return LaunchSpec(
        model=model,
        gpu=Gpu(name="cpu", device="cpu", product="cpu"),
        drafter=drafter,
        capture=False,
        locked_mhz=None,
        concurrencies=(1, 8),
        max_new_tokens=64,
        max_prompt_tokens=None,
        seed=0,
        settings={"threads": 1, **settings},
        device_uuid=None,
        log_path=Path(os.devnull),
        cache_dir=ROOT / ".cache",
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
    )


def drafter(scheme: Any, width: int = 1, **settings: Any) -> Drafter:
    """Return a drafter that verifies `width` positions."""
    return Drafter(
        name=f"{scheme}-{width}", scheme=scheme, draft_tokens=width - 1, verify_width=width, settings=settings
    )


class Generate:
    """Plain greedy decoding by transformers' own `generate`, as a user would call it."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(EMBEDDED, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None  # a fixed length, as `ignore_eos` gives

    def __call__(self, prompts: Sequence[Prompt], new_tokens: int) -> list[tuple[int, ...]]:
        """Return the output tokens of each prompt; the batch is left-padded."""
        inputs = self._tokenizer.apply_chat_template(
            [p.chat() for p in prompts], add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
        )
        with self._torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
        return [tuple(row[inputs["input_ids"].shape[1] :].tolist()) for row in out]


def machine() -> str:
    """Return one line on the machine and the libraries."""
    import torch
    import transformers

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} cores ({cpu}), one thread used, Python {platform.python_version()}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}"
    )


def command() -> str:
    """Return the command that runs the present script again."""
    return " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]])
