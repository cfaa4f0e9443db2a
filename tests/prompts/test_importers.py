"""Local copies of well-known sets become corpora; everything else is refused in one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import canonical_digest, load_corpus
from specjoule.prompts.importers import import_prompts, seal
from specjoule.prompts.quality import own_texts

HUMANEVAL = [
    {"task_id": "HumanEval/0", "prompt": "def add(a, b):\n    \"\"\"Add.\"\"\"\n", "entry_point": "add",
     "canonical_solution": "    return a + b\n", "test": "..."},
    {"task_id": "HumanEval/1", "prompt": "def neg(a):\n    \"\"\"Negate.\"\"\"\n", "entry_point": "neg"},
]  # fmt: skip
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Compose a travel post.", "Rewrite it."], "reference": ["x"]},
    {"question_id": 82, "category": "math", "turns": ["What is 2 + 2?"]},
    {"question_id": 83, "category": "math", "turns": ["What is 2 + 2?"]},
]


def write(path: Path, items: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")
    return path


def test_humaneval(tmp_path: Path) -> None:
    out = tmp_path / "he.jsonl"
    assert import_prompts("humaneval", write(tmp_path / "x.jsonl", HUMANEVAL), out, license="MIT") == 2
    prompts = load_corpus(out)
    assert [p.id for p in prompts] == ["he-humaneval-0", "he-humaneval-1"]
    assert "def add(a, b)" in prompts[0].messages[0][1]
    record = json.loads(out.read_text().splitlines()[0])
    assert record["license"] == "MIT"
    assert len(record["source"]["sha256"]) == 64
    assert "canonical_solution" not in record  # a solution in the prompt file would end up in somebody's prompt


def test_question_files_give_first_turns_and_no_text_twice(tmp_path: Path) -> None:
    out = tmp_path / "mt.jsonl"
    assert import_prompts("questions", write(tmp_path / "q.jsonl", QUESTIONS), out, license="Apache-2.0") == 2
    assert [p.messages[0][1] for p in load_corpus(out)] == ["Compose a travel post.", "What is 2 + 2?"]


@pytest.mark.parametrize("license", ["", "unknown", " ? ", "None"])
def test_a_licence_is_needed(tmp_path: Path, license: str) -> None:
    with pytest.raises(ConfigurationError, match="licence"):
        import_prompts("humaneval", write(tmp_path / "x.jsonl", HUMANEVAL), tmp_path / "o.jsonl", license=license)
    assert not (tmp_path / "o.jsonl").exists()


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists"):
        import_prompts("humaneval", write(tmp_path / "x.jsonl", HUMANEVAL), out, license="MIT")
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty"),
        (gzip.compress(b"{}", mtime=0), "gunzip"),
        (b"\xff\xfe\x00", "binary"),
        (b"not json\n", "line 1: not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b'{"question_id": 1, "turns": ["a"]}\n', "lacks 'task_id'"),
        (b'{"task_id": "x", "prompt": ""}\n', "lacks 'prompt'"),
    ],
)
def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    source = tmp_path / "x.jsonl"
    source.write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        import_prompts("humaneval", source, tmp_path / "o.jsonl", license="MIT")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "o.jsonl").exists()


def test_missing_file_folder_and_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such prompt file"):
        import_prompts("humaneval", tmp_path / "none", tmp_path / "o", license="MIT")
    with pytest.raises(ConfigurationError, match="is a folder"):
        import_prompts("humaneval", tmp_path, tmp_path / "o", license="MIT")
    with pytest.raises(ConfigurationError, match="did you mean 'humaneval'"):
        import_prompts("human-eval", tmp_path, tmp_path / "o", license="MIT")


def test_hand_written_prompts_are_sealed(tmp_path: Path) -> None:
    item = {"id": "a", "language": "en", "license": "CC0-1.0", "messages": [{"role": "user", "content": "Say hello."}]}
    out = tmp_path / "sealed.jsonl"
    assert seal(write(tmp_path / "mine.jsonl", [item]), out) == 1
    assert load_corpus(out)[0].id == "a"
    with pytest.raises(ConfigurationError, match="lacks license"):
        seal(write(tmp_path / "bad.jsonl", [{k: v for k, v in item.items() if k != "license"}]), out)
    assert load_corpus(out)[0].id == "a"


def test_separators_within_a_text_do_not_cut_its_line(tmp_path: Path) -> None:
    text = "One\u2028two\x85three\x0bfour"
    source = write(tmp_path / "x.jsonl", [{"question_id": 1, "turns": [text]}])
    assert import_prompts("questions", source, tmp_path / "out.jsonl", license="MIT") == 1
    assert load_corpus(tmp_path / "out.jsonl")[0].messages[0][1] == text
    assert list(own_texts(tmp_path / "out.jsonl").values()) == [text]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 1}, "line 1: 'id' must be a text, not 1"),
        ({"language": None}, "line 1: 'language' must be a text, not None"),
        ({"license": " "}, "line 1: 'license' must be a text, not ' '"),
        ({"messages": "Say hello."}, "line 1: 'messages' must be a non-empty list"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "line 1: holds half a character"),
    ],
)
def test_a_prompt_of_the_wrong_kind_is_refused_when_sealed(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    item = {"id": "a", "language": "en", "license": "CC0-1.0", "messages": [{"role": "user", "content": "Say hello."}]}
    with pytest.raises(ConfigurationError, match=message):
        seal(write(tmp_path / "mine.jsonl", [{**item, **change}]), tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 1}, "line 1: 'id' must be a text, not 1"),
        ({"document": ["d"]}, r"line 1: document '\['d'\]' is not in"),
        ({"document": "d"}, "document 'd': lacks text"),
    ],
)
def test_a_corpus_with_a_prompt_of_the_wrong_kind_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    item = {"id": "a", "language": "en", "license": "CC0-1.0", "messages": messages}
    write(tmp_path / "documents.jsonl", [{"id": "d", "language": "en", "license": "CC0-1.0"}])
    corpus = write(tmp_path / "c.jsonl", [{**item, "digest": canonical_digest(messages), **change}])
    with pytest.raises(ConfigurationError, match=message):
        load_corpus(corpus)
