"""`specjoule remeasure CELL...`: let the next run measure single cells again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption, OverridesOption, StudyOption, project_from


def remeasure(
    cells: Annotated[
        list[str],
        typer.Argument(help="Raw file, cell hash (six or more digits), or quoted pattern with *.", show_default=False),
    ],
    study: StudyOption = STUDY_DEFAULT,
    overrides: OverridesOption = "{}",
    with_drafters: Annotated[
        bool, typer.Option("--with-drafters", help="For a plain cell: also the drafters that are divided by it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be marked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Mark cells so that the next run measures just them, each beside its plain partner, in a new segment.

    Nothing is thrown away: the earlier attempts stay in the store and in the raw file. Which attempt counts is a fixed
    rule (the newest segment with both sides finished), so do not use this until a number pleases.

    Examples:

      specjoule remeasure results/raw/default/smollm2-135m-instruct/cpu/ngram-4/code/c4/s1.parquet

      specjoule remeasure --dry-run 'default/*/ngram-16/code/c8/*'
    """
    from specjoule.blocks.remeasure import Marked, find_cells, mark, with_their_drafters

    project = project_from(study, overrides)
    chosen = find_cells(project.blocks, cells, Path(project.raw))
    if with_drafters:
        chosen = with_their_drafters(project.blocks, chosen)
    if dry_run:
        marked = [Marked(cell, block.id, True, None) for block, cell in chosen]
    else:
        marked = mark(project.store, Path(project.raw), chosen)
    if as_json:
        document = [
            {"path": m.cell.path, "hash": m.cell.hash, "block": m.block_id, "marked": m.was_measured and not dry_run}
            for m in marked
        ]
        typer.echo(json.dumps(document, indent=2))
        return
    for m in marked:
        typer.echo(f"{m.cell.path}  ({_words(m, dry_run)})")
    fresh = sum(m.was_measured for m in marked)
    if fresh and not dry_run:
        typer.echo(f"{fresh} cell(s) marked; the next run (snakemake, or make run) measures them and their partners.")


def _words(m: object, dry_run: bool) -> str:
    from specjoule.blocks.remeasure import Marked

    assert isinstance(m, Marked)
    if dry_run:
        return f"block {m.block_id}; would be marked"
    if not m.was_measured:
        return "not measured yet; the next run measures it anyway"
    if m.partner is None:
        return "marked; existing pairs keep their own plain side, see --with-drafters"
    return f"marked, with its plain partner {m.partner}"
