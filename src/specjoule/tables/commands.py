"""`specjoule analyse` and `specjoule advise`: the analysis on any folder of raw windows, without Snakemake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specjoule.errors import ConfigurationError

if TYPE_CHECKING:
    from specjoule.tables.context import Context

app = typer.Typer(help="Tables, figures and advice from raw windows.", no_args_is_help=True)

DEFAULT_CACHE = Path(".cache/analysis")
WORKERS = 2
OWN_CACHE = ".cache"
"""Folder within the output where `analyse` remembers the blocks it has read."""
RawFolders = Annotated[
    list[Path], typer.Argument(metavar="RAW_DIR...", help="folders of raw windows, e.g. results/raw")
]
StudyOption = Annotated[
    Path | None, typer.Option("--study", help="study file: analysis constants, validity rules, catalogue entries")
]
CacheOption = Annotated[Path, typer.Option("--cache", help="where blocks already read are remembered")]


def open_context(
    folders: list[Path], study: Path | None, cache: Path | None = DEFAULT_CACHE, workers: int = WORKERS
) -> Context:
    """Read raw folders into a `Context`; `study` adds constants, rules and catalogue. Raises SpecJouleError."""
    from specjoule.study.load import load_study
    from specjoule.tables.context import Context
    from specjoule.tables.ingest import ingest

    loaded = load_study(study) if study is not None else None
    data = ingest(folders, loaded.file.validity if loaded else None, cache=cache, workers=workers)
    name = " + ".join(sorted(data.rows["study"].unique()))
    known: dict[str, Any] = {}
    if loaded is not None:
        known = {
            "analysis": loaded.file.analysis, "models": loaded.models, "drafters": loaded.drafters, "gpus": loaded.gpus,
        }  # fmt: skip
    return Context(data.rows, name, nested=data.nested, **known)


@app.command()
def analyse(
    folders: RawFolders,
    output: Annotated[Path, typer.Option("--output", help="folder for tables, figures and manifest.json")],
    only: Annotated[list[str] | None, typer.Option("--only", help="build only these items; may be repeated")] = None,
    study: StudyOption = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="where blocks already read are remembered (default: in the output)")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="processes that read and draw")] = WORKERS,
) -> None:
    """Build every table and figure from folders of raw windows."""
    from specjoule.tables.ingest import forget_others
    from specjoule.tables.registry import build_all, check_names
    from specjoule.windows.collect import give_memory_back

    names = check_names([n for text in only or [] for n in text.split(",")])
    give_memory_back()
    context = open_context(folders, study, cache or output / OWN_CACHE, workers)
    if cache is None:
        forget_others(output / OWN_CACHE, context.nested)
    paths = build_all(context, output, only=names or None, workers=workers)
    typer.echo(f"{len(paths)} files in {output}; {paths[-1].name} lists every item with its question and rule")


@app.command()
def advise(
    folders: RawFolders,
    model: Annotated[str, typer.Option("--model", help="target model")],
    gpu: Annotated[str, typer.Option("--gpu", help="kind of board")],
    target_ms: Annotated[float, typer.Option("--target-ms", help="longest interval between a user's tokens, ms")],
    mix: Annotated[
        str, typer.Option("--mix", help="texts by share of output tokens: conversation=0.7,code=0.3")
    ] = "code=1",
    percentile: Annotated[int | None, typer.Option("--percentile", help="95 or 99; default: the mean")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    study: StudyOption = None,
    cache: CacheOption = DEFAULT_CACHE,
) -> None:
    """Say which measured configuration to run under a latency target."""
    import json

    from specjoule.tables.advice import advise as give

    advice = give(
        open_context(folders, study, cache), model=model, gpu=gpu, target_ms=target_ms, mix=parse_mix(mix),
        percentile=percentile,
    )  # fmt: skip
    typer.echo(json.dumps(advice.as_dict(), indent=1, ensure_ascii=False) if json_output else advice.as_text())


def parse_mix(text: str) -> dict[str, float]:
    """Read 'conversation=0.7,code=0.3'. Raises ConfigurationError."""
    out: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.strip().partition("=")
        try:
            out[name] = float(share)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise ConfigurationError(f"--mix {text!r}: write texts and shares like conversation=0.7,code=0.3")
    return out
