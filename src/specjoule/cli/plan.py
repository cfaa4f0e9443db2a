"""`specjoule plan`: what a study will measure, why, and what it will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption, OverridesOption, StudyOption, project_from
from specjoule.cli.progress import clock_time
from specjoule.errors import ConfigurationError
from specjoule.workflow import Project

MOST_BLOCKS = 12


def plan(
    study_file: Annotated[
        Path | None, typer.Argument(metavar="[STUDY]", help="Study file.", show_default=False)
    ] = None,
    study: StudyOption = STUDY_DEFAULT,
    overrides: OverridesOption = "{}",
    commands: Annotated[
        bool, typer.Option("--commands", help="Print each server launch as one JSON object a line instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is to be measured: cells, blocks, what is stale and why, time, disk.

    Examples:  specjoule plan    specjoule plan config/paper.yaml    specjoule plan config/paper.yaml --commands
    """
    project = project_from(study_file or study, overrides)
    if commands:
        _print_commands(project)
        return
    from specjoule.blocks.planning import StudyPlan, study_plan

    found: StudyPlan = study_plan(project)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"Study '{found.study}': {found.cells} cells in {found.blocks_total} blocks, {found.finished} finished, "
        f"{found.to_measure} to measure"
        + (f" (and {found.partners} plain partners beside them)" if found.partners else "")
    )
    for why, count in found.why.items():
        console.print(f"  {count} x {why}")
    if found.blocks:
        table = Table()
        for name in ("block", "to measure", "launches", "about"):
            table.add_column(name, justify="left" if name == "block" else "right")
        for block in found.blocks[:MOST_BLOCKS]:
            name = f"{block.block_id} (running)" if block.running else block.block_id
            table.add_row(name, str(block.to_measure), str(block.launches), clock_time(block.seconds))
        console.print(table)
        if len(found.blocks) > MOST_BLOCKS:
            console.print(f"  ... and {len(found.blocks) - MOST_BLOCKS} more blocks")
    for item in found.gpu_hours:
        console.print(f"{item.gpu}, {item.model}: {item.left_h:.2f} of {item.whole_h:.2f} board hours left")
    console.print(f"Time from {found.times_from}; disk about {found.disk_bytes / 1e9:.2f} GB in {found.files} files")
    if found.expected_infeasible:
        for reason, count in found.expected_infeasible.items():
            console.print(f"expected infeasible: {count} x {reason}")


def _print_commands(project: Project) -> None:
    """One JSON object a line: model, drafter, GPU, command, environment of every distinct launch."""
    if project.study.file.engine.name != "sglang":
        raise ConfigurationError(
            f"--commands: study '{project.name}' starts no server (engine '{project.study.file.engine.name}'); "
            "only studies with the sglang engine have launch commands"
        )
    from specjoule.engines.sglang.commands import command_records

    for record in command_records(project.study):
        typer.echo(json.dumps(record))
