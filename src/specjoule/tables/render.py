"""One data frame, three files: CSV with full precision, Markdown and LaTeX to read; always with provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap

import pandas as pd

from specjoule.files import write_text
from specjoule.reasons import Reason
from specjoule.tables.labels import label

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\leq$", "≥": r"$\geq$", "±": r"$\pm$",
    "×": r"$\times$", "−": r"$-$", "–": "--", "τ": r"$\tau$", "ρ": r"$\rho$", "Σ": r"$\Sigma$", "γ": r"$\gamma$",
    "≠": r"$\neq$", "·": r"$\cdot$", "→": r"$\to$", "∞": r"$\infty$",
}  # fmt: skip


def write_table(
    df: pd.DataFrame,
    directory: Path,
    name: str,
    *,
    caption: str,
    provenance: str,
    excluded: Mapping[str, int] | pd.DataFrame | None = None,
    columns: tuple[str, ...] | None = None,
) -> list[Path]:
    """Write `name`.csv, `name`.md and `name`.tex into `directory`; return their paths.

    The CSV holds every column at full precision and a `provenance` column, so that the words travel with the numbers.
    Markdown and LaTeX show `columns` (default: all), with headings from `labels` and four significant digits, the
    caption, the provenance, and what was left out: counts by reason code. `excluded` is those counts or the frame of
    excluded cells (its `reason` column is counted). Columns without any value are in the CSV only; LaTeX, meant for a
    page's width, also says those with a single one in its caption.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shown = [c for c in (columns or tuple(df.columns)) if c in df.columns]
    view = df[shown]
    counts = count_reasons(excluded) if isinstance(excluded, pd.DataFrame) else dict(excluded or {})
    note = exclusion_note(counts)
    texts = {
        ".csv": df.assign(provenance=provenance).to_csv(index=False, lineterminator="\n"),
        ".md": _markdown(view, caption, provenance, note),
        ".tex": _latex(view, name, caption, provenance, note),
    }
    paths = {directory / f"{name}{suffix}": text for suffix, text in texts.items()}
    for path, text in paths.items():
        write_text(path, text)
    return list(paths)


def count_reasons(excluded: pd.DataFrame) -> dict[str, int]:
    """Count excluded cells by reason code, most frequent first; a cell with two codes counts under both."""
    if excluded.empty:
        return {}
    codes = excluded["reason"].str.split(",").explode()
    counts = codes.value_counts()
    return {str(k): int(v) for k, v in sorted(counts.items(), key=lambda kv: (-int(kv[1]), str(kv[0])))}


def exclusion_note(counts: Mapping[str, int]) -> str:
    """One sentence on what was left out, with each code's own sentence."""
    if not counts:
        return "Excluded: none."
    known = {r.value: r.text for r in Reason}
    parts = [
        f"{n} {code} ({known[code].rstrip('.')})" if code in known else f"{n} {code}" for code, n in counts.items()
    ]
    return "Excluded cells by reason: " + "; ".join(parts) + "."


def format_value(value: object) -> str:
    """Format one cell for reading: four significant digits, 'yes'/'no', an en dash for a missing value."""
    if value is None or value is pd.NA or value is pd.NaT:
        return "–"
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value)
    return str(value)


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == round(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.3g}"
    digits = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:.{min(digits, 4)}f}"


def _cells(view: pd.DataFrame) -> tuple[list[str], list[list[str]], list[bool]]:
    heads = [label(c) for c in view.columns]
    numeric = [pd.api.types.is_numeric_dtype(view[c]) and not pd.api.types.is_bool_dtype(view[c]) for c in view.columns]
    texts = [[format_value(v) for v in view[c].tolist()] for c in view.columns]
    return heads, [list(r) for r in zip(*texts, strict=True)], numeric


def _markdown(view: pd.DataFrame, caption: str, provenance: str, note: str) -> str:
    view = view.dropna(axis="columns", how="all") if len(view) else view
    heads, body, numeric = _cells(view)
    escape: Callable[[str], str] = lambda s: s.replace("|", "\\|").replace("\n", " ")  # noqa: E731
    lines = [caption, "", f"**Energy: {provenance}.** {note}", ""]
    if not body:
        return "\n".join([*lines, "*No cell of this data answers this question.*", ""])
    lines.append("| " + " | ".join(map(escape, heads)) + " |")
    lines.append("|" + "|".join("---:" if n else "---" for n in numeric) + "|")
    lines.extend("| " + " | ".join(map(escape, r)) + " |" for r in body)
    return "\n".join([*lines, ""])


def latex_escape(text: str) -> str:
    """Escape a text for LaTeX (pdfLaTeX without extra packages)."""
    return "".join(_LATEX.get(ch, ch) for ch in text)


def narrowed(view: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Leave out columns without any value, and those with one value only, which a sentence says instead."""
    told = view.replace("", None).dropna(axis="columns", how="all")
    if len(told) < 2:
        return told, ""
    same = [c for c in told.columns if told[c].nunique(dropna=False) == 1]
    if len(same) == len(told.columns):
        return told, ""
    words = ", ".join(f"{label(c)} {format_value(told[c].iloc[0])}" for c in same)
    return told.drop(columns=same), f" In every row: {words}." if same else ""


def _stacked(heading: str, side: str) -> str:
    """Break a heading into lines of about ten letters: a table's width is that of its numbers then."""
    lines = wrap(heading, 10, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return latex_escape(heading)
    stacked = r"\\".join(map(latex_escape, lines))
    return rf"\shortstack[{side}]{{{stacked}}}"


def _latex(view: pd.DataFrame, name: str, caption: str, provenance: str, note: str) -> str:
    view, everywhere = narrowed(view)
    caption += everywhere
    heads, body, numeric = _cells(view)
    spec = "".join("r" if n else "l" for n in numeric)
    rows = [" & ".join(map(latex_escape, r)) + r" \\" for r in body]
    if not rows:
        spec, heads, numeric, rows = "l", [""], [False], [r"No cell of this data answers this question. \\"]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,longtable}",
            r"{\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{spec}}}",
            rf"\caption{{{latex_escape(caption)} Energy: {latex_escape(provenance)}. {latex_escape(note)}}}"
            rf"\label{{tab:{name}}}\\",
            r"\toprule",
            " & ".join(_stacked(h, "r" if n else "l") for h, n in zip(heads, numeric, strict=True)) + r" \\",
            r"\midrule\endhead",
            *rows,
            r"\bottomrule",
            r"\end{longtable}}",
            "",
        ]
    )
