"""What the workflow's scripts do: arguments in, one library call, exit code out."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specjoule.blocks.record_file import read_record
from specjoule.errors import SpecJouleError
from specjoule.files import RUN_AGAIN, read_json
from specjoule.workflow import DEFAULT_STUDY, PARTS, Project, open_project


def _parser(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--study", type=Path, default=DEFAULT_STUDY, help="study file (default: config/config.yaml)")
    parser.add_argument("--overrides", type=json.loads, default={}, help="JSON object of keys that replace the file's")
    return parser


def _project(arguments: argparse.Namespace) -> Project:
    return open_project(arguments.study, arguments.overrides)


def measure_main(argv: Sequence[str] | None = None) -> int:
    """Measure what a block lacks and write its record. Returns the exit code."""
    parser = _parser("Measure what one block of a study lacks.")
    parser.add_argument("--block", required=True)
    parser.add_argument("--log", type=Path, help="file for the log (default: standard error)")
    arguments = parser.parse_args(argv)
    _log_to(arguments.log)
    from specjoule.cluster.job import run_block

    try:
        project = _project(arguments)
        return run_block(project, project.block(arguments.block))
    except SpecJouleError as error:
        logging.getLogger(__name__).error("%s", error)
        print(f"error: {error}", file=sys.stderr)
        return 1


def collect_main(argv: Sequence[str] | None = None) -> int:
    """Judge a block's raw files and write its collected tables. Returns the exit code."""
    parser = _parser("Judge the windows of one block.")
    parser.add_argument("--block", required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    from specjoule.windows.collect import collect, write_collected
    from specjoule.windows.drift import drifts_of

    try:
        project = _project(arguments)
        block = project.block(arguments.block)
        record = read_record(project.record(block.id), RUN_AGAIN)
        hashes = {project.raw_file(cell): cell.hash for cell in block.cells}
        collected = collect(hashes, project.raw, project.study.file.validity, drifts_of(record), hashes)
        write_collected(collected, arguments.output, project.parts(block.id))
    except SpecJouleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def figures_main(argv: Sequence[str] | None = None) -> int:
    """Build all tables and figures, or some by name. Returns the exit code."""
    parser = _parser("Build tables and figures from the collected rows.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of items; default: all")
    parser.add_argument("--workers", type=int, default=1, help="processes that draw")
    arguments = parser.parse_args(argv)
    from specjoule.tables.context import Context
    from specjoule.tables.registry import build_all
    from specjoule.windows.collect import StoredNested, give_memory_back, read_frame

    try:
        give_memory_back()
        project = _project(arguments)
        study = project.study
        context = Context(
            read_frame([project.rows(block.id) for block in project.blocks]),
            project.name,
            analysis=study.file.analysis,
            models=study.models,
            drafters=study.drafters,
            gpus=study.gpus,
            nested=StoredNested({name: [project.parts(block.id)[name] for block in project.blocks] for name in PARTS}),
            records=[read_record(project.record(block.id), RUN_AGAIN) for block in project.blocks],
        )
        build_all(context, arguments.output, project.name, only=arguments.only, workers=arguments.workers)
    except SpecJouleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def made_main(argv: Sequence[str] | None = None) -> int:
    """Print where the study's tables and figures are and how its joules were obtained. Returns the exit code."""
    arguments = _parser("Name the tables and figures of a study.").parse_args(argv)
    project = _project(arguments)
    manifest_file = project.figures / "manifest.json"
    if not manifest_file.exists():
        return 0  # the run asked for something less than the figures
    manifest = read_json(manifest_file, RUN_AGAIN)
    print(f"\nStudy '{project.name}': tables and figures in {project.figures}/")
    for item in manifest["items"]:
        print(f"  {item['files'][0]:<36} {item['question']}")
    counts = manifest["cells"]
    print(f"Energy: {manifest['energy']}. Cells: {counts['pairs']} pairs, {counts['excluded']} excluded.")
    for code, count in manifest["excluded_by_reason"].items():
        print(f"  excluded: {count} x {code}")
    return 0


def _log_to(path: Path | None) -> None:
    form = "%(asctime)s %(levelname)s %(message)s"
    if path is None:
        logging.basicConfig(level=logging.INFO, format=form)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format=form, filename=path)
