"""`specjoule recompute`: every stored window again from its trace, into the collected tables."""

from __future__ import annotations

import json

import typer

from specjoule.blocks.record_file import read_record
from specjoule.cli.options import STUDY_DEFAULT, JsonOption, OverridesOption, StudyOption, project_from
from specjoule.errors import StoreError
from specjoule.files import RUN_AGAIN
from specjoule.meters.base import Calibration


def recompute(
    study: StudyOption = STUDY_DEFAULT, overrides: OverridesOption = "{}", as_json: JsonOption = False
) -> None:
    """Compute every stored window's energy again from its trace, with the boards' present calibrations.

    Raw files stay as they were; the collected tables are written anew, and the next run rebuilds tables and figures
    from them.

    Examples:  specjoule recompute && snakemake figures
    """
    import statistics

    from specjoule.meters.calibration_store import load_calibration
    from specjoule.windows.collect import collect_recomputed, write_collected
    from specjoule.windows.drift import drifts_of

    project = project_from(study, overrides)

    def calibration_of(uuid: str | None) -> Calibration | None:
        found = load_calibration(uuid) if uuid else None
        return found.for_windows() if found else None

    changes: list[float] = []
    blocks = [b for b in project.blocks if project.record(b.id).exists()]
    if not blocks:
        raise StoreError(f"study '{project.name}' has no finished block yet; run snakemake first")
    for block in blocks:
        record = read_record(project.record(block.id), RUN_AGAIN)
        hashes = {project.raw_file(cell): cell.hash for cell in block.cells}
        rules = project.study.file.validity
        collected, changed = collect_recomputed(hashes, project.raw, rules, drifts_of(record), calibration_of, hashes)
        write_collected(collected, project.rows(block.id), project.parts(block.id))
        changes += changed
    largest = max((abs(c) for c in changes), default=None)
    median = statistics.median(changes) if changes else None
    if as_json:
        document = {"blocks": len(blocks), "windows": len(changes), "median_change": median, "largest_change": largest}
        typer.echo(json.dumps(document))
        return
    typer.echo(f"{len(changes)} windows of {len(blocks)} blocks computed again; raw files unchanged")
    if largest is not None and median is not None:
        typer.echo(f"energy changed by {median:+.3%} (median), at most {largest:.3%}")
