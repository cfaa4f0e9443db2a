"""A small HTML page without anything to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;margin:1.5rem auto;max-width:90rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:1.6rem}
table{border-collapse:collapse;font-size:13px;margin:.6rem 0}
th,td{border-bottom:1px solid #ddd;padding:.25rem .6rem;text-align:left;vertical-align:top}
th{background:#f4f4f4;position:sticky;top:0}td.n{text-align:right;font-variant-numeric:tabular-nums}
table.frame td{max-width:20rem}table.frame td.n,table.frame td.s{white-space:nowrap}
.wide{overflow-x:auto}.note{background:#fff6e0;border-left:4px solid #e69f00;padding:.5rem .8rem}
.ok{background:#eaf6f0;border-left:4px solid #009e73;padding:.5rem .8rem}code{background:#f4f4f4;padding:0 .2rem}
"""


SHORT = 24
"""A text of so few letters, a name as a rule, is not broken over lines."""


def page(title: str, *parts: str) -> str:
    """Return a whole page; `parts` are HTML already."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> str:
    """Return a second-level heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; kind 'note' or 'ok' sets it apart."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool] = (), kind: str = "") -> str:
    """Return a table of texts; columns marked numeric are set flush right, kind 'frame' wraps long texts only."""
    aligned = [*numeric, *[False] * (len(heads) - len(numeric))]
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{"n" if n else "s" if len(v) <= SHORT else ""}">{escape(v)}</td>'
            for v, n in zip(row, aligned, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a two-column table of names and values."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs)
    return f"<table>{rows}</table>"
