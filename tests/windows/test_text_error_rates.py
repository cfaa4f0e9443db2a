"""Language and repetition checks on text that is in no corpus; the same functions make docs/text-checks.md."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from specjoule.prompts.quality import five_grams
from specjoule.study.model import ValidityConfig
from specjoule.windows.text import answer_language, before_natural_end, repetition

REPO = Path(__file__).resolve().parents[2]
RULES = ValidityConfig()


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("text_checks", REPO / "benchmarks" / "text_checks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["text_checks"] = module
    spec.loader.exec_module(module)
    return module


def test_the_evaluation_texts_are_not_in_the_corpora(checks: ModuleType) -> None:
    pool = set()
    for file in (REPO / "prompts").glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            text = item.get("text") or " ".join(m["content"] for m in item["messages"])
            pool |= five_grams(text)
    for text in checks.texts():
        grams = five_grams(text["text"])
        assert len(grams & pool) <= 0.05 * len(grams), text["id"]


@pytest.mark.parametrize("split", ["development", "held-out"])
def test_languages(checks: ModuleType, split: str) -> None:
    rates = checks.language_rates([t for t in checks.texts() if t["split"] == split], RULES.min_romansh_rate)
    assert rates["romansh_found"] >= 0.9 * rates["romansh"]
    assert rates["others_called_romansh"] == 0
    assert rates["others_right"] == rates["others"]


@pytest.mark.parametrize("split", ["development", "held-out"])
def test_repetition(checks: ModuleType, split: str) -> None:
    rates = checks.repetition_rates([t for t in checks.texts() if t["split"] == split], RULES, checks.pieces)
    assert rates["loops_found"] == rates["loops"]
    assert rates["natural_called_loops"] == 0


def test_long_answers(checks: ModuleType) -> None:
    wrong, total = checks.long_natural(checks.texts(), RULES, checks.pieces)
    assert wrong == 0
    assert total >= 5
    found = checks.tails(checks.texts(), RULES, checks.pieces)
    assert found[0.5] == found[0.75] == found[1.0] == 1.0


def test_every_romansh_and_english_news_prompt_is_called_rightly() -> None:
    for name, language in (("news_rm", "rm"), ("news_en", "en")):
        lines = (REPO / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        called = [answer_language(json.loads(x)["messages"][-1]["content"], RULES.min_romansh_rate) for x in lines]
        assert called.count(language) >= 0.98 * len(called)


def test_only_what_precedes_the_natural_end_is_judged() -> None:
    natural = "The ferry leaves at nine and comes back at noon, and there is tea for the people who wait."
    text = natural + " La vischnanca è davart las chasas e las vias che vegnan tras tut." * 4
    tokens = len(text)
    assert answer_language(before_natural_end(text, len(natural), tokens), RULES.min_romansh_rate) == "en"
    assert before_natural_end(text, None, tokens) == text
    assert before_natural_end(text, 0, tokens) == ""
    judged = repetition([*range(40), *[7] * 400], 40, min_distinct=0.2, max_repeated=0.5, min_tokens=24)
    assert judged.degenerate is False
    assert judged.distinct_token_ratio == 1.0
