"""`specjoule status`: how far a study is."""

from __future__ import annotations

import json

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption, OverridesOption, StudyOption, project_from
from specjoule.cli.progress import clock_time


def status(study: StudyOption = STUDY_DEFAULT, overrides: OverridesOption = "{}", as_json: JsonOption = False) -> None:
    """Show how far a study is: done, running, stale, infeasible, partial, invalid, failed, by model and drafter.

    Reads journals and block records alone, so it may be called at any time, from another terminal or a login node.

    Examples:  specjoule status    specjoule status --study config/paper.yaml --json
    """
    from specjoule.blocks.status import STATES, StudyStatus, study_status

    project = project_from(study, overrides)
    found: StudyStatus = study_status(project)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = [state for state in STATES if found.counts.get(state)] or ["missing"]
    table = Table(title=f"Study '{found.study}': {found.cells} cells in {found.blocks} blocks")
    table.add_column("model")
    table.add_column("drafter")
    for state in ("cells", *shown):
        table.add_column(state, justify="right")
    for row in found.rows:
        table.add_row(row.model, row.drafter, str(row.cells), *(str(row.counts.get(s, 0) or "") for s in shown))
    if len(found.rows) > 1:
        table.add_section()
        table.add_row("all", "", str(found.cells), *(str(found.counts.get(s, 0)) for s in shown))
    console.print(table)
    for state, reasons in found.reasons.items():
        for reason, count in reasons.items():
            console.print(f"{state}: {count} x {reason}", highlight=False)
    for running in found.running:
        since = "" if running.since_s is None else f" for {clock_time(running.since_s)}"
        console.print(
            f"running: {running.block_id} on {running.host}: {running.path or 'starting'}{since}", highlight=False
        )
    if found.eta_s is not None:
        source = f"{found.measured_cells} measured cells" if found.measured_cells else "the forecast alone"
        console.print(f"left: about {clock_time(found.eta_s)} (from {source})", highlight=False)
    if found.usage.start_share is not None and found.usage.busy_share is not None:
        console.print(
            f"board time: {found.usage.start_share:.0%} server starts; with a server up, "
            f"{found.usage.busy_share:.0%} warm-up, settling and windows",
            highlight=False,
        )
    if found.last_error:
        console.print(f"last error: {found.last_error}", highlight=False, markup=False)
