"""LaTeX tables compile, and without a LaTeX here are whole: closed, escaped, as many cells a row as columns."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specjoule.tables.items import ITEMS
from specjoule.tables.registry import build
from tests.golden.study import golden_context

ENGINE = next((e for e in ("pdflatex", "lualatex", "xelatex", "tectonic") if shutil.which(e)), None)
PREAMBLE = (
    "\\documentclass{article}\n\\usepackage[margin=1cm,landscape]{geometry}\n\\usepackage{booktabs,longtable,graphicx}\n"
    "\\usepackage[utf8]{inputenc}\n\\usepackage[T1]{fontenc}\n\\usepackage{textcomp}\n\\begin{document}\n"
)
CELL_BREAK = re.compile(r"(?<!\\)&")
SPECIAL = re.compile(r"(?<!\\)[#_%]")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, context = tmp_path_factory.mktemp("tables"), golden_context()
    names = [n for n, item in ITEMS.items() if item.kind == "table"]
    return [p for n in names for p in build(n, context, folder) if p.suffix == ".tex"]


def test_every_table_is_closed_escaped_and_regular(tables: list[Path]) -> None:
    for path in tables:
        text = path.read_text(encoding="utf-8")
        begun, ended = (re.findall(rf"\\{w}\{{(\w+\*?)\}}", text) for w in ("begin", "end"))
        assert sorted(begun) == sorted(ended) and begun, path.name
        assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}"), path.name
        assert text.isascii() or not re.search(r"[^\x00-\xff]", text), (
            path.name,
            re.findall(r"[^\x00-\xff]", text)[:5],
        )
        body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("%"))
        assert not SPECIAL.search(re.sub(r"\\(label|ref)\{[^}]*\}", "", body)), (path.name, SPECIAL.search(body))
        rows = [line for line in body.splitlines() if line.rstrip().endswith("\\\\") and CELL_BREAK.search(line)]
        if rows:
            counts = {len(CELL_BREAK.findall(line)) for line in rows}
            assert len(counts) == 1, (path.name, counts)
            columns = re.search(r"\\begin\{(?:tabular|longtable)\*?\}(?:\[[^]]*\])?\{([^}]*)\}", body)
            assert columns is not None and len(re.findall(r"[lrcp]", columns.group(1))) == counts.pop() + 1, path.name


@pytest.mark.skipif(ENGINE is None, reason="no LaTeX on this machine; the structure is checked above")
def test_every_table_compiles(tables: list[Path], tmp_path: Path) -> None:
    inputs = "\n\\clearpage\n".join(f"\\input{{{p}}}" for p in tables)
    source = tmp_path / "all.tex"
    source.write_text(PREAMBLE + inputs + "\n\\end{document}\n", encoding="utf-8")
    assert ENGINE is not None
    command = [ENGINE] if ENGINE == "tectonic" else [ENGINE, "-interaction=nonstopmode", "-halt-on-error"]
    ran = subprocess.run(
        [*command, source.name], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
