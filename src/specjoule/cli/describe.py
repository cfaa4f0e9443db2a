"""`specjoule describe FILE`: one cell in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specjoule.cli.options import JsonOption


def describe(
    file: Annotated[Path, typer.Argument(help="A raw window file below results/raw.", show_default=False)],
    study: Annotated[
        Path | None, typer.Option("--study", "-s", help="Judge by this study's thresholds (default: the shipped ones).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say in words what one cell is: what, when, where, energy, tokens, rounds, and why it counts or not.

    Examples:

      specjoule describe results/raw/default/smollm2-135m-instruct/cpu/ngram-4/code/c4/s1.parquet

      specjoule describe --json FILE | jq '.attempts[].j_per_token'
    """
    from specjoule.windows.describe import describe_file, in_words

    rules = None
    if study is not None:
        from specjoule.study.load import load_study

        rules = load_study(study).file.validity
    facts = describe_file(file, rules)
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else in_words(facts))
