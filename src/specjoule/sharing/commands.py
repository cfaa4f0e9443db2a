"""`specjoule merge`, `compare`, `bundle`, `unbundle`, `reanalyse`; `compact` and `restore` for a study's stores."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption, OverridesOption, StudyOption, project_from
from specjoule.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Merge, compare and bundle studies; compact their stores.")


class Redactable(StrEnum):
    """What can be taken out of a bundle."""

    TEXTS = "texts"
    HOSTS = "hosts"
    UUIDS = "uuids"


@app.command()
def merge(
    sources: Annotated[list[str], typer.Argument(help="Project folder, opened bundle or collected table; SITE=PATH.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Merged table (Parquet).")],
    as_json: JsonOption = False,
) -> None:
    """Merge collected studies of several sites into one table; pairs are never made across sites.

    Examples:

      specjoule merge hilltop=../hilltop lakeside=../lakeside -o merged.parquet
    """
    import pyarrow as pa

    from specjoule.sharing.merge import merge as merged_of
    from specjoule.sharing.merge import parse_source
    from specjoule.windows.collect import ROWS_SCHEMA, write_rows

    merged = merged_of([parse_source(s) for s in sources])
    table = pa.Table.from_pandas(merged.rows, schema=ROWS_SCHEMA, preserve_index=False)
    write_rows(table, output)
    if as_json:
        typer.echo(json.dumps(merged.to_dict()))
        return
    typer.echo(
        f"{output}: {len(merged.rows)} rows of {len(sources)} sources; {merged.same_measurements} arrived twice and "
        f"are kept once; {merged.cells_at_several_sites} cells were measured at several sites"
    )


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Project folder, opened bundle or collected table.")],
    b: Annotated[Path | None, typer.Argument(help="The other side; none with --by.")] = None,
    by: Annotated[str | None, typer.Option(help="Column of A with two values: site, driver, engine_version.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the tables (CSV).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two releases, sites or drivers cell by cell, with the settings that differ beside.

    Examples:

      specjoule compare ../release-1 ../release-2

      specjoule compare merged.parquet --by driver
    """
    from specjoule.sharing.compare import compare as compared
    from specjoule.sharing.compare import split_by
    from specjoule.sharing.rows import collected_rows
    from specjoule.tables.provenance import provenance_words

    if (b is None) is (by is None):
        raise ConfigurationError("name the other side, or a column to split by (--by), and not both")
    if by is not None:
        (first, rows_a), (second, rows_b) = split_by(collected_rows(a), by).items()
    else:
        assert b is not None
        (first, rows_a), (second, rows_b) = (str(a), collected_rows(a)), (str(b), collected_rows(b))
    found = compared(rows_a, rows_b, (first, second))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for name in ("cells", "summary", "settings"):
            getattr(found, name).to_csv(output / f"compare_{name}.csv", index=False, lineterminator="\n")
    if as_json:
        document: dict[str, Any] = {
            "a": first, "b": second, "energy": provenance_words(found.meters), "unmatched": list(found.unmatched),
            "settings": json.loads(found.settings.to_json(orient="records")),
            "summary": json.loads(found.summary.to_json(orient="records")),
        }  # fmt: skip
        typer.echo(json.dumps(document))
        return
    typer.echo(f"A = {first}, B = {second}. Energy: {provenance_words(found.meters)}.")
    typer.echo(
        f"{len(found.cells)} cells on both sides; {found.unmatched[0]} only on A, {found.unmatched[1]} only on B"
    )
    typer.echo("\nSettings that differ:")
    typer.echo(found.settings.to_string(index=False) if len(found.settings) else "  none")
    shown = ["model", "gpu", "drafter", "concurrency", "corpus", "n", "ratio_a", "ratio_b", "ratio_change",
             "ratio_change_half_range", "plain_change", "spec_change"]  # fmt: skip
    typer.echo("\nEnergy ratio (drafter over plain) on each side, and B over A:")
    typer.echo(found.summary[shown].to_string(index=False, float_format=lambda x: f"{x:.3f}"))


@app.command()
def bundle(
    output: Annotated[Path, typer.Argument(help="Archive to write (.zip).")],
    study: StudyOption = STUDY_DEFAULT,
    overrides: OverridesOption = "{}",
    redact: Annotated[list[Redactable] | None, typer.Option(help="Take out; may be given often.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bundle a study with everything its numbers can be computed from again.

    Examples:

      specjoule bundle study.zip --study config/paper.yaml --redact texts --redact hosts --redact uuids
    """
    from specjoule.sharing.bundle import write_bundle
    from specjoule.sharing.redact import Redaction

    wanted = set(redact or ())
    redaction = Redaction(Redactable.TEXTS in wanted, Redactable.HOSTS in wanted, Redactable.UUIDS in wanted)
    done = write_bundle(project_from(study, overrides), output, redaction)
    if as_json:
        document = {"path": str(done.path), "files": done.files, "bytes": done.bytes, "redacted": list(done.redacted)}
        typer.echo(json.dumps({**document, "missing_cells": done.missing_cells}))
        return
    typer.echo(
        f"{done.path}: {done.files} files, {done.bytes / 1e6:.1f} MB; {done.missing_cells} cells not measured yet"
    )


@app.command()
def unbundle(
    bundle: Annotated[Path, typer.Argument(help="Bundle.")],
    folder: Annotated[Path, typer.Argument(help="New folder.")],
) -> None:
    """Check every file of a bundle and unpack it."""
    from specjoule.sharing.bundle import open_bundle

    typer.echo(f"{folder}: {open_bundle(bundle, folder)} files, all as they should be")


@app.command()
def reanalyse(
    folder: Annotated[Path, typer.Argument(help="Folder of an opened bundle.")],
    output: Annotated[Path, typer.Argument(help="Folder for tables and figures.")],
) -> None:
    """Judge an opened bundle's raw windows anew and build its tables and figures."""
    from specjoule.sharing.bundle import reanalyse as analysed

    typer.echo(f"{output}: {len(analysed(folder, output))} files")


@app.command()
def compact(
    study: StudyOption = STUDY_DEFAULT,
    overrides: OverridesOption = "{}",
    blocks: Annotated[list[str] | None, typer.Option("--block", help="Only this block; may be given often.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Remove the raw files too; `restore` rebuilds them.")] = False,
) -> None:
    """Pack each finished block's stored cells into one file, to save inodes; every cell stays readable by itself."""
    from specjoule.blocks.compact import compact_block

    project = project_from(study, overrides)
    removed = packed = 0
    for block in [project.block(b) for b in blocks] if blocks else project.blocks:
        done = compact_block(project, block, raw=raw)
        removed, packed = removed + done.files_removed, packed + 1
    typer.echo(f"{packed} blocks, one archive each; {removed} files and folders fewer")


@app.command()
def restore(
    study: StudyOption = STUDY_DEFAULT,
    overrides: OverridesOption = "{}",
    blocks: Annotated[list[str] | None, typer.Option("--block", help="Only this block; may be given often.")] = None,
) -> None:
    """Unpack compacted blocks and rebuild their raw files; nothing is measured."""
    from specjoule.blocks.compact import restore_block

    project = project_from(study, overrides)
    chosen = [project.block(b) for b in blocks] if blocks else project.blocks
    typer.echo(f"{sum(restore_block(project, block) for block in chosen)} raw files are there")
