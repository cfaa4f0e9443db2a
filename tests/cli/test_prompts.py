"""`prompts import`, `seal`, `check` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

QUESTION = {"question_id": 81, "category": "writing", "turns": ["Compose a travel post."]}


def test_import_and_check(project_folder: Path, run: Run) -> None:
    Path("question.jsonl").write_text(json.dumps(QUESTION) + "\n")
    ran = run("prompts", "import", "questions", "question.jsonl", "--license", "Apache-2.0", "-o", "prompts/mt.jsonl")
    assert ran.code == 0, ran.err
    assert "mt: {path: prompts/mt.jsonl, language: en, license: Apache-2.0}" in ran.out
    assert json.loads(run("prompts", "check", "prompts/mt.jsonl", "--json").out)["prompts"] == 1


def test_without_a_licence_nothing_is_imported(project_folder: Path, run: Run) -> None:
    Path("question.jsonl").write_text(json.dumps(QUESTION) + "\n")
    ran = run("prompts", "import", "questions", "question.jsonl", "-o", "prompts/mt.jsonl")
    assert "--license" in ran.sentence
    assert not Path("prompts/mt.jsonl").exists()


def test_shipped_corpora_pass(project_folder: Path, run: Run) -> None:
    for name in ("code", "long_document", "news_rm"):
        assert run("prompts", "check", f"prompts/{name}.jsonl").code == 0


def test_alike_prompts_are_shown(project_folder: Path, run: Run) -> None:
    items = [
        {"id": f"p{i}", "language": "en", "license": "CC0-1.0",
         "messages": [{"role": "user", "content": f"Write me a program that adds {i} numbers."}]}
        for i in range(5)
    ]  # fmt: skip
    Path("own.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))
    assert run("prompts", "seal", "own.jsonl", "-o", "sealed.jsonl").code == 0
    ran = run("prompts", "check", "sealed.jsonl")
    assert ran.code == 1
    assert "the frame 'write me a program ...' is in 5 prompts" in ran.out


@pytest.mark.parametrize("command", ["check", "seal"])
def test_wrong_files(project_folder: Path, run: Run, command: str) -> None:
    Path("empty.jsonl").touch()
    Path("binary.jsonl").write_bytes(b"\x00\xff\xfe" * 40)
    more = ["-o", "out.jsonl"] if command == "seal" else []
    for name in ("none.jsonl", "empty.jsonl", "binary.jsonl", "config"):
        assert name in run("prompts", command, name, *more).sentence
    assert not Path("out.jsonl").exists()


def test_a_full_disk_leaves_nothing_behind(project_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("question.jsonl").write_text(json.dumps(QUESTION) + "\n")

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    ran = run("prompts", "import", "questions", "question.jsonl", "--license", "MIT", "-o", "prompts/mt.jsonl")
    assert "No space left" in ran.sentence
    assert not Path("prompts/mt.jsonl").exists()
