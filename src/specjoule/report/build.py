"""Builds the report's pages: `python workflow/scripts/build_report_pages.py --study FILE --output DIR`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjoule.blocks.record_file import read_record
from specjoule.errors import SpecJouleError
from specjoule.files import RUN_AGAIN, read_json
from specjoule.workflow import DEFAULT_STUDY, open_project


def pages_main(argv: Sequence[str] | None = None) -> int:
    """Write the pages of a study's report. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the pages of a study's report.")
    parser.add_argument("--study", type=Path, default=DEFAULT_STUDY)
    parser.add_argument("--overrides", type=json.loads, default={})
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    from specjoule.report.pages import write_pages
    from specjoule.windows.collect import read_rows

    try:
        project = open_project(arguments.study, arguments.overrides)
        manifest = read_json(project.figures / "manifest.json", RUN_AGAIN)
        records = [read_record(project.record(block.id), RUN_AGAIN) for block in project.blocks]
        rows = read_rows([project.rows(block.id) for block in project.blocks])
        write_pages(arguments.output, project.study, manifest, records, rows, _resolve, project.figures)
    except SpecJouleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f"specjoule.{module}"), name)
