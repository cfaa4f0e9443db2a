"""The page of tables and figures, made from their list (`python -m specjoule.tables.page`)."""

from __future__ import annotations

import sys

from specjoule.tables.items import ITEMS

HEAD = """\
# Tables and figures

<!-- made by: python -m specjoule.tables.page > docs/tables-and-figures.md -->

Every item can be rebuilt alone by name: `specjoule analyse RAW_DIR… --output DIR --only NAME`, or
`specjoule.tables.registry.build(name, rows, dir, study)`. Tables come as CSV (all columns, full precision, a
`provenance` column), Markdown and LaTeX (a selection); figures as PDF and PNG with the plotted numbers as CSV.
`manifest.json` lists study, code, cells used, exclusions by reason and these questions and rules. Where data are
missing an item says so instead of being absent. Joules that no meter measured are named in every table and printed
across every figure.

Items marked *nested* read per-request columns of the raw files.
"""

TAIL = """
## Conventions

- *Which attempt counts:* newest segment with both sides finished, first valid attempt; fixed before the data.
- *r_E* comes from decode windows where both sides have valid ones, else from generation windows (the prefill is in
  it); `r_e_window` says which.
- *Percentiles of intervals* of a cell are the token-weighted mean over its waves; `figure_gaps` pools all gaps.
- *Energy uncertainty* of a cell is the linear sum over its waves: the lag's share is common to them.
- *Draft share* expects runs named `<drafter>+nodraft` and `<drafter>+random`.
"""


def items_page() -> str:
    """Return the page in Markdown: one row an item, in the order of the write-up."""
    rows = [
        f"| `{item.name}` | {item.question} | {item.rule} | {', '.join(item.windows) or 'block records'} |"
        for item in ITEMS.values()
    ]
    return "\n".join([HEAD, "| name | question | rule | windows |", "|---|---|---|---|", *rows]) + "\n" + TAIL


if __name__ == "__main__":
    sys.stdout.write(items_page())
