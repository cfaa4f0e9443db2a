"""The page of reason codes, made from the enumeration: `python -m specjoule.reasons_page > docs/reasons.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from specjoule.reasons import Reason

GROUPS: Mapping[str, tuple[str, str]] = {
    "run": (
        "Outcome of the run",
        "In `reason` of the raw rows, beside a `status` that is not `ok`. `partial` keeps its energy at the batch that "
        "really ran; `infeasible` is a result, not a failure; `failed` cells are measured again by the next run.",
    ),
    "accounting": ("Accounting", "The identities of rounds and tokens that every row satisfies or is invalid by."),
    "prompts": ("Prompts and cache", "What would make the two sides of a pair answer different questions."),
    "meter": ("Meter", "Faults of the energy reading. A missing reading is null with one of these, never zero."),
    "board": ("Board and machine", "Conditions under which the number is not the drafter's doing."),
    "content": ("Content", "Judged on each answer up to its natural end; thresholds: [text checks](text-checks.md)."),
    "pair": ("Pairs", "Why a valid cell stands in no ratio; in `excluded` of the manifest and under every table."),
    "block": ("Block", "Known only beside the cells, in the block's record."),
    "missing": ("Missing values", "Why a column is empty."),
}
"""Headings and what the codes of a group have in common."""

HEAD = """# Every reason code

<!-- made by: python -m specjoule.reasons_page > docs/reasons.md -->

Codes are fixed before the data and never reused. `collect` alone decides whether a row counts (`validity`,
`validity_reason`); the journal holds a provisional verdict of the same function. Rows are kept whatever the verdict,
and every table counts what it left out by these codes. `specjoule describe FILE` says which apply to one cell.
"""


def reasons_page() -> str:
    """Return the page in Markdown, one table a group, in the enumeration's order."""
    parts = [HEAD]
    for group in dict.fromkeys(r.group for r in Reason):
        title, words = GROUPS.get(group, (group.capitalize(), ""))
        rows = [f"| `{r.value}` | {r.text} |" for r in Reason if r.group == group]
        parts.append("\n".join([f"## {title}", "", words, "", "| code | meaning |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reasons_page())
