"""Generated pages agree with the code; the documentation builds without a network and without a dead link."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specjoule.reasons import Reason
from specjoule.reasons_page import GROUPS, reasons_page
from specjoule.tables.page import items_page
from specjoule.windows.dictionary import NESTED_FIELDS, data_dictionary
from specjoule.windows.schema import COLLECTED, COLUMNS
from tests.docs.conftest import PAGES, REPO

DOCS = REPO / "docs"


def test_the_page_of_tables_and_figures_is_their_list() -> None:
    remedy = "python -m specjoule.tables.page > docs/tables-and-figures.md"
    assert (DOCS / "tables-and-figures.md").read_text(encoding="utf-8") == items_page(), remedy


def test_the_reasons_page_is_the_enumeration() -> None:
    remedy = "python -m specjoule.reasons_page > docs/reasons.md"
    assert (DOCS / "reasons.md").read_text(encoding="utf-8") == reasons_page(), remedy
    assert {r.group for r in Reason} <= set(GROUPS)


def test_the_data_dictionary_is_the_schema() -> None:
    remedy = "python -m specjoule.windows.dictionary > docs/data-dictionary.md"
    page = (DOCS / "data-dictionary.md").read_text(encoding="utf-8")
    assert page == data_dictionary(), remedy
    for column in (*COLUMNS, *COLLECTED):
        assert f"| `{column.name}` |" in page
    for _, struct, meanings in NESTED_FIELDS:
        assert {f.name for f in struct} == set(meanings)


def test_the_text_checks_page_is_what_the_script_measures() -> None:
    page = (DOCS / "text-checks.md").read_text(encoding="utf-8")
    folder = REPO / ".cache" / "models" / "smollm2-135m-instruct"
    if not (folder / "tokenizer.json").exists():
        pytest.skip("the embedded model's tokenizer is not here")
    done = subprocess.run(
        [sys.executable, "benchmarks/text_checks.py"], cwd=REPO, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.rstrip() == page.rstrip(), "python benchmarks/text_checks.py --output docs/text-checks.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_named_in_prose_exist(page: Path) -> None:
    from specjoule.cli.app import COMMANDS
    from specjoule.cli.app import GROUPS as command_groups

    known = {name for name, _ in (*COMMANDS, *command_groups)}
    for name in re.findall(r"`specjoule ([a-z-]+)", page.read_text(encoding="utf-8")):
        assert name in known, f"{page.name} names `specjoule {name}`"


def test_the_documentation_builds_offline(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("material")
    mkdocs = Path(sys.executable).parent / "mkdocs"
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=REPO, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").glob("*.html"):
        fetched = re.findall(r'(?:src|<link[^>]+href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        assert fetched == [], f"{page.name} would fetch {fetched}"
