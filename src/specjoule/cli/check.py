"""`specjoule check`: is this machine fit to measure?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption, StudyOption

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}


def check(
    study: StudyOption = STUDY_DEFAULT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    as_json: JsonOption = False,
    board: Annotated[str | None, typer.Option(help="Look at this board (UUID) and its meter instead.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="With --board: calibrate its meter and keep that.")
    ] = False,
    load_command: Annotated[
        str | None, typer.Option(help="With --measure: program that loads the board; default: PyTorch.")
    ] = None,
) -> None:
    """Say whether this machine is fit to measure a study: meters, cores, load, governor, disk, versions.

    Each line that is not ok names its remedy. Exit code 0: fit (warnings are noise or estimates that the results
    state); 1: something is missing without which nothing can be measured, or with --strict any warning.

    Examples:

      specjoule check

      specjoule check --strict --study config/paper.yaml

      specjoule check --board GPU-5f1c... --measure

      specjoule check --json | jq '.findings[] | select(.level != "ok")'
    """
    if board is not None or measure:
        from specjoule.meters.commands import check as check_board

        check_board(board=board, measure=measure, load_command=load_command)
        return
    from specjoule.fitness.everything import examine

    findings = examine(study)
    worst = next((level for level in ("fail", "warn") if any(f.level == level for f in findings)), "ok")
    fit = worst == "ok" or (worst == "warn" and not strict)
    if as_json:
        document = {"fit": fit, "worst": worst, "findings": [f.as_dict() for f in findings]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(show_header=False, box=None, padding=(0, 1))
        for f in findings:
            remedy = "" if f.remedy is None else f"\n[dim]→ {escape(f.remedy)}[/]"
            table.add_row(_MARKS[f.level], escape(f.name), escape(f.found) + remedy)
        console = Console()
        console.print(table)
        count = sum(f.level == "warn" for f in findings)
        console.print(
            "Not fit to measure."
            if worst == "fail"
            else f"Fit to measure{f', with {count} warning(s)' if count else ''}."
        )
    if not fit:
        raise typer.Exit(1)
