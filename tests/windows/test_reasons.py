"""The enumeration of reason codes against the code that gives them."""

from __future__ import annotations

from pathlib import Path

from specjoule import reasons
from specjoule.reasons import Reason


def test_no_reason_is_promised_that_nothing_gives() -> None:
    library = Path(reasons.__file__).parent
    text = "\n".join(p.read_text(encoding="utf-8") for p in library.rglob("*.py") if p.name != "reasons.py")
    unused = [r.value for r in Reason if f"Reason.{r.name}" not in text and f'"{r.value}"' not in text]
    assert unused == []
