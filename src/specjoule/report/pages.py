"""What each page of the report says, from the manifest, the block records and the collected rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specjoule.meters.base import MEASURED
from specjoule.reasons import Reason
from specjoule.report.html import facts, heading, page, paragraph, table
from specjoule.study.model import Study
from specjoule.tables.items import ITEMS, Item
from specjoule.tables.labels import label
from specjoule.tables.render import format_value, narrowed

PAGES: tuple[str, ...] = ("about", "exclusions", "drift", "versions")
"""Pages beside one for each table, by the name of their file."""

METHOD: tuple[tuple[str, str], ...] = (
    (
        "Energy per committed token",
        "e = E/N: the board's energy from handing over the batch to its last token, over the tokens that all requests "
        "delivered in that time. Drafted, verified and requested tokens are not in N.",
    ),
    (
        "Ratio and saving",
        "Per seed, sums over waves on each side, then one division by plain decoding on the same board, segment, "
        "settings, prompts and seed. The headline is the median over seeds; its spread the half-range.",
    ),
    (
        "Order",
        "Plain is launched first, drafters in random order, cells in random order within a launch, and plain once more "
        "at the end: closing over first plain, minus 1, is the block's drift.",
    ),
    (
        "What counts",
        "Rules with reason codes, set before the data. Invalid and partial rows are kept, counted below every table, "
        "and stand in no ratio. Nothing was measured again because of its number.",
    ),
)


def about(study: Study, manifest: Mapping[str, Any], rows: pd.DataFrame) -> str:
    """The first page: the question, where the joules come from, the method, what not to conclude."""
    meters = [str(m) for m in manifest["meters"]]
    cells = manifest["cells"]
    questions = [grid.question for grid in study.file.grids.values() if grid.question]
    per_seed = rows["seed"].nunique() if len(rows) else 0
    caveats = [
        "A difference smaller than the spread of the seeds is no difference.",
        f"{per_seed} seeds were measured; the half-range of few seeds understates what more would show.",
        "The board's counter leaves out what it does not cover: network, cooling, and on a GPU the host.",
        "What holds for this model, board and text need not hold for another.",
    ]
    if not _measured(manifest):
        caveats.insert(0, f"Energy here is {manifest['energy']}: no joule of it may be quoted as a measurement.")
    return page(
        study.file.title or study.name,
        energy(manifest),
        *[paragraph(q) for q in questions],
        facts([
            ("Study", study.name),
            ("Cell attempts", str(cells["attempts"])),
            ("Pairs that may be divided", str(cells["pairs"])),
            ("Drafters' cells left out", f"{cells['excluded']}{_reasons(manifest['excluded_by_reason'])}"),
            ("Meter", ", ".join(meters) or "none"),
        ]),
        heading("Method"), facts(METHOD),
        heading("What not to conclude"), "<ul>", *[f"<li>{_text(c)}</li>" for c in caveats], "</ul>",
        heading("Tables and figures"),
        table(["Name", "Question", "Rule"], [(i.name, i.question, i.rule) for i in ITEMS.values()]),
    )  # fmt: skip


def energy(manifest: Mapping[str, Any]) -> str:
    """Where the joules come from, set apart as a warning where they were not measured."""
    return paragraph(f"Energy: {manifest['energy']}.", "ok" if _measured(manifest) else "note")


def exclusions(manifest: Mapping[str, Any]) -> str:
    """Which drafters' cells stand in no pair, counted and one by one."""
    known = {r.value: r.text for r in Reason}
    counts = manifest["excluded_by_reason"]
    listed = manifest["excluded_cells"]
    if not listed:
        return page("Exclusions", paragraph("Every drafter's cell stands in a pair; nothing was left out.", "ok"))
    columns = [c for c in listed[0] if c != "cell_hash"]
    return page(
        "Exclusions",
        paragraph("Rules were fixed before the data; a cell that is left out is kept in the raw files."),
        table(
            ["Reason", "Cells", "Meaning"], [(k, str(v), known.get(k, "")) for k, v in counts.items()], (False, True)
        ),
        heading("Cell by cell"),
        table([label(c) for c in columns], [[format_value(cell.get(c)) for c in columns] for cell in listed]),
    )


def drift(records: Sequence[Mapping[str, Any]], limit: float) -> str:
    """How far plain at each segment's end differs from plain at its start, and what else differed between launches."""
    lines, differences = [], []
    for record in records:
        for segment in record["segments"]:
            differences += [
                (
                    record["block_id"],
                    c["drafter"],
                    c["against"],
                    d["kind"],
                    d["setting"],
                    str(d["plain"]),
                    str(d["value"]),
                )
                for c in segment.get("settings_compared", ())
                for d in c["differences"]
            ]
            for item in segment["drift"]:
                value = item["drift"]
                words = "unknown: no closing plain" if value is None else f"{100 * value:+.2f} %"
                ratios = ", ".join(f"{r['corpus']} c{r['concurrency']}: {r['ratio']:.4f}" for r in item["references"])
                beyond = value is not None and abs(value) > limit
                board = str(segment.get("gpu_name") or "–")
                words += " (beyond the limit)" if beyond else ""
                capture = "on" if item["capture"] else "off"
                clock = "default" if item["locked_mhz"] is None else f"{item['locked_mhz']} MHz"
                place = (record["block_id"], segment["segment_id"], board, capture, clock)
                lines.append((*place, segment["outcome"], words, ratios))
    return page(
        "Drift",
        paragraph(
            "Closing plain's energy per token over the first plain's, minus 1: plain against plain, so it is also what "
            f"a launch alone changes. Beyond {100 * limit:g} % every row of the segment is invalid."
        ),
        table(
            ["Block", "Segment", "Board", "Capture", "Clock", "Outcome", "Drift", "Closing / first, by reference cell"],
            lines,
        ),
        heading("Settings beyond speculation that differ between a drafter's launch and plain's"),
        table(["Block", "Drafter", "Against", "Kind", "Setting", "Plain", "Drafter's"], differences)
        if differences
        else paragraph("None."),
    )


def versions(manifest: Mapping[str, Any], rows: pd.DataFrame) -> str:
    """Code, engines, models, boards, hosts: what the numbers were made with."""
    code = manifest["code"]
    parts = [
        facts([
            ("SpecJoule", f"{code['version']} ({code['commit'] or 'outside git'})"),
            ("Protocol", str(code["protocol_version"])),
            ("Measured with commits", ", ".join(manifest["measured_with"]) or "outside git"),
        ])
    ]  # fmt: skip
    for title, columns in (
        ("Engines and weights", ("engine", "engine_version", "model", "model_revision", "drafter", "drafter_revision")),
        ("Boards and meters", ("gpu", "gpu_name", "gpu_uuid", "driver", "power_limit_w", "meter", "meter_refresh_ms")),
        ("Hosts", ("host", "cpu_model", "governor", "numa_node")),
    ):
        present = [c for c in columns if c in rows]
        # The refresh is measured in each window: one per board is enough here.
        distinct = rows[present].drop_duplicates([c for c in present if c != "meter_refresh_ms"])
        parts += [heading(title), frame_table(distinct.sort_values(present[:1]))]
    return page("Versions", *parts)


def table_page(item: Item, frame: pd.DataFrame, shown: Sequence[str] | None, manifest: Mapping[str, Any]) -> str:
    """One table of the study for reading on a screen."""
    columns = [c for c in (shown or frame.columns) if c in frame.columns]
    view, everywhere = narrowed(frame[columns])
    return page(
        item.question, energy(manifest), paragraph(item.rule + everywhere),
        frame_table(view),
        paragraph(f"All columns at full precision: {item.name}.csv; for a write-up: {item.name}.tex."),
    )  # fmt: skip


def frame_table(frame: pd.DataFrame) -> str:
    """Return a data frame as an HTML table with headings and four significant digits."""
    kinds = [frame[c].dtype for c in frame.columns]
    numeric = [pd.api.types.is_numeric_dtype(k) and not pd.api.types.is_bool_dtype(k) for k in kinds]
    values = [[format_value(v) for v in frame[c].tolist()] for c in frame.columns]
    return table([label(c) for c in frame.columns], list(zip(*values, strict=True)), numeric, kind="frame")


def names_of_pages(items: Iterable[Item] | None = None) -> tuple[str, ...]:
    """Return the names of all pages: the fixed ones, then one per table."""
    listed = ITEMS.values() if items is None else items
    return (*PAGES, *(i.name for i in listed if i.kind == "table"))


def write_pages(
    output: Path,
    study: Study,
    manifest: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    rows: pd.DataFrame,
    resolve: Callable[[str], Any],
    figures: Path,
) -> list[Path]:
    """Write every page into `output`; tables come from the CSV files in `figures`. Return the paths."""
    from specjoule.files import write_text

    texts = {
        "about": about(study, manifest, rows),
        "exclusions": exclusions(manifest),
        "drift": drift(records, study.file.validity.max_block_drift),
        "versions": versions(manifest, rows),
    }
    for item in ITEMS.values():
        if item.kind == "table":
            frame = pd.read_csv(figures / f"{item.name}.csv")
            shown = resolve(item.shown) if item.shown else None
            texts[item.name] = table_page(item, frame, shown, manifest)
    paths = []
    for name, text in texts.items():
        path = output / f"{name}.html"
        write_text(path, text)
        paths.append(path)
    return paths


def _measured(manifest: Mapping[str, Any]) -> bool:
    meters = set(manifest["meters"])
    return bool(meters) and meters <= MEASURED


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{v} x {k}' for k, v in counts.items())})" if counts else ""


def _text(text: str) -> str:
    from html import escape

    return escape(text)
