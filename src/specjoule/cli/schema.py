"""`specjoule schema`: the JSON schemas of study and catalogues, written to config/schemas/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specjoule.files import write_json
from specjoule.study.load import CATALOGUES
from specjoule.study.schema import catalogue_schema, study_schema


def schema(
    output: Annotated[Path, typer.Option(help="Folder to write the schemas into.")] = Path("config/schemas"),
) -> None:
    """Write the JSON schemas that editors check study and catalogue files with."""
    write_json(output / "study.schema.json", study_schema())
    for kind in CATALOGUES:
        write_json(output / f"{kind}.schema.json", catalogue_schema(kind))
    typer.echo(f"{1 + len(CATALOGUES)} schemas in {output}/")
