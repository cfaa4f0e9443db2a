"""The double backed by the reference engine: acceptance is a real model's, and no draft changes its text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specjoule.engines.base import Batch, WaveResult
from specjoule.engines.sglang.engine import SglangEngine
from specjoule.prompts.corpus import load_corpus
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import ROOT
from tests.engines.sglang.test_engine import DOUBLE, double_settings

pytestmark = [pytest.mark.reference, pytest.mark.timeout(300)]

MODEL = ROOT / ".cache" / "models" / "smollm2-135m-instruct"


def wave(tmp_path: Path, scheme: str, width: int) -> WaveResult:
    settings = double_settings({"mode": "reference", "step_ms": 2}, entry=[sys.executable, str(DOUBLE)], stall_s=120)
    spec = specs.launch(
        specs.model(MODEL),
        specs.drafter(scheme, width),
        tmp_path,
        settings | {"start_deadline_s": 120, "wave_deadline_s": 200},
    )
    engine = SglangEngine(board_processes=lambda _: ())
    try:
        engine.start(spec)
        return engine.run(
            Batch(tuple(load_corpus(ROOT / "prompts" / "code.jsonl")[:2]), max_new_tokens=24, ignore_eos=True)
        )
    finally:
        engine.stop()


def test_drafts_are_accepted_and_change_no_text(tmp_path: Path) -> None:
    if not (MODEL / "config.json").exists():
        pytest.skip(f"no {MODEL}; make it with: python -m specjoule.engines.embedded --output {MODEL}")
    plain, drafted = wave(tmp_path, "plain", 1), wave(tmp_path, "ngram", 8)
    assert [r.output_token_ids for r in drafted.requests] == [r.output_token_ids for r in plain.requests]
    assert [r.text for r in drafted.requests] == [r.text for r in plain.requests]
    assert sum(r.accepted_draft_tokens for r in drafted.requests) > 0
    assert sum(r.rounds for r in drafted.requests) < sum(r.rounds for r in plain.requests)
    for request in drafted.requests:
        assert request.committed_tokens == 24 == 1 + request.accepted_draft_tokens + request.rounds - request.cut_tokens
        assert request.prompt_tokens > 20
