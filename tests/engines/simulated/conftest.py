from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from specjoule.engines.base import Batch, LaunchSpec
from specjoule.engines.simulated import SimulatedEngine, SimulatedMeter, open_simulated
from specjoule.prompts.corpus import Prompt
from specjoule.study.load import load_study
from specjoule.study.model import Study

ROOT = Path(__file__).resolve().parents[3]

NO_SPREAD: dict[str, float] = {
    "board_power_spread": 0, "board_bandwidth_spread": 0, "launch_power_spread": 0, "launch_time_spread": 0,
    "step_time_spread": 0, "stall_probability": 0,
}  # fmt: skip
"""Every random difference between boards, launches and steps off."""

IDEAL: dict[str, dict[str, Any]] = {
    "board": {**NO_SPREAD, "leakage_per_kelvin": 0, "after_load_w": 0},
    "kernels": {
        "combine_exponent": float("inf"), "weight_bandwidth_efficiency": 1, "expert_bandwidth_efficiency": 1,
        "kv_bandwidth_efficiency": 1, "tile_positions": 1, "expert_tile_positions": 1, "expert_popular_share": 1,
        "routing_overlap": 0, "activation_bytes": 0, "captured_us": 0,
    },
    "host": {"step_ms": 0, "speculative_step_ms": 0, "draft_step_ms": 0},
}  # fmt: skip
"""The ideal roofline: no padding, no launches, no spread, no leakage."""


@pytest.fixture(scope="session")
def rehearsal() -> Study:
    return load_study(ROOT / "config" / "rehearsal.yaml")


def with_settings(study: Study, **settings: Any) -> Study:
    engine = study.file.engine.model_copy(update={"settings": settings})
    return study.model_copy(update={"file": study.file.model_copy(update={"engine": engine})})


def make_prompts(count: int, corpus: str = "code", language: str = "en") -> tuple[Prompt, ...]:
    out = []
    for i in range(count):
        text = f"Prompt {i} of {corpus}: " + "some words to read " * (5 + i % 7)
        digest = hashlib.sha256(text.encode()).hexdigest()
        out.append(Prompt(f"{corpus}-{i}", corpus, language, (("user", text),), digest, "CC0-1.0"))
    return tuple(out)


def launch(
    study: Study, model: str, gpu: str, drafter: str, *, capture: bool = True, mhz: int | None = None,
    sizes: tuple[int, ...] = (1, 4, 16, 64), max_new: int = 512, state: str = "cold",
) -> LaunchSpec:  # fmt: skip
    m = study.models[model]
    return LaunchSpec(
        model=m, gpu=study.gpus[gpu], drafter=study.drafters[drafter], capture=capture, locked_mhz=mhz,
        concurrencies=sizes, max_new_tokens=max_new, max_prompt_tokens=None, seed=1, settings={}, device_uuid=None,
        log_path=Path("unused"), cache_dir=Path("unused"), weight_dtype=m.weight_dtype, kv_dtype=m.kv_dtype,
        ngram_state=state,  # type: ignore[arg-type]
    )  # fmt: skip


def started(
    study: Study, model: str, gpu: str, drafter: str, block: str = "block", **options: Any
) -> tuple[SimulatedEngine, SimulatedMeter]:
    engine, meter = open_simulated(study, study.gpus[gpu], block, 1)
    meter.start()
    engine.start(launch(study, model, gpu, drafter, **options))
    return engine, meter


def batch(
    count: int, max_new: int = 512, *, ignore_eos: bool = True, corpus: str = "code", language: str = "en"
) -> Batch:
    return Batch(make_prompts(count, corpus, language), max_new, ignore_eos)
