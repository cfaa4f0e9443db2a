"""`specjoule pin`: the commits of hub checkpoints, written into the catalogues."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CATALOGUES = (Path("config/models.yaml"), Path("config/drafters.yaml"))


def pin(
    catalogues: Annotated[list[Path] | None, typer.Argument(help="Default: config/models.yaml, drafters.yaml.")] = None,
) -> None:
    """Write today's commit of every checkpoint that is still `to-be-pinned` into the catalogues; comments stay.

    Needs a node that reaches the hub, and `huggingface_hub` (extra `reference`). What is pinned already is not asked
    for and does not move. A pinned revision is part of every cell's hash: look at the difference and commit it before
    measuring.

    Examples:

      specjoule pin

      specjoule pin config/drafters.yaml
    """
    from specjoule.engines.sglang.pin import hub_head, pin_catalogue

    for catalogue in catalogues or CATALOGUES:
        commits = pin_catalogue(catalogue, hub_head)
        for name, commit in commits.items():
            typer.echo(f"{name}  {commit}")
        typer.echo(f"{catalogue}: {len(commits)} pinned")
