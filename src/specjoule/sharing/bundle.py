"""One archive with everything that a study's numbers can be computed from again, and everything that says what it is.

    config/ prompts/ results/raw results/blocks results/collected paper_figures   as in the project
    environment.json requirements.txt LICENSE licenses.json README.md
    ro-crate-metadata.json checksums.sha256

Entries are in a fixed order with fixed times: the same study gives the same bytes (redacted ones differ).
"""

from __future__ import annotations

import hashlib
import json
import platform
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.blocks.record_file import read_record
from specjoule.errors import StoreError
from specjoule.files import RUN_AGAIN
from specjoule.sharing.crate import crate_metadata, readme
from specjoule.sharing.redact import Redaction, redact_record, redact_table
from specjoule.version import PROTOCOL_VERSION, __version__
from specjoule.workflow import Project

CHECKSUMS = "checksums.sha256"
CRATE = "ro-crate-metadata.json"
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundled:
    """What was put into a bundle."""

    path: Path
    files: int
    bytes: int
    redacted: tuple[str, ...]
    missing_cells: int
    """Cells of the study that are not measured yet and so not in it."""


def write_bundle(project: Project, output: Path, redaction: Redaction | None = None) -> Bundled:
    """Write the study's bundle to `output` (a zip archive). Raises StoreError."""
    redaction = redaction or Redaction()
    records = {b.id: project.record(b.id) for b in project.blocks if project.record(b.id).is_file()}
    if not records:
        raise StoreError(f"study '{project.name}': no block is measured yet; there is nothing to bundle")
    redaction = replace(redaction, known_hosts=_hosts(records.values()))
    missing = sum(not project.raw_file(c).is_file() for c in project.cells)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    sums: dict[str, tuple[str, int]] = {}
    try:
        with zipfile.ZipFile(temporary, "w") as archive:

            def put(name: str, data: bytes) -> None:
                info = zipfile.ZipInfo(name, _TIME)
                compressed = name.endswith((".parquet", ".pdf", ".png"))
                info.compress_type = zipfile.ZIP_STORED if compressed else zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)
                sums[name] = (hashlib.sha256(data).hexdigest(), len(data))

            for name, content in _entries(project, records, redaction):
                put(name, content())
            put("README.md", readme(project, redaction.names, missing).encode())
            put(CRATE, _json(crate_metadata(project, sums, redaction.names)))
            put(CHECKSUMS, "".join(f"{digest}  {name}\n" for name, (digest, _) in sorted(sums.items())).encode())
        temporary.replace(output)
    except OSError as error:
        raise StoreError(f"{output}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Bundled(output, len(sums) - 1, output.stat().st_size, redaction.names, missing)


def open_bundle(path: Path, folder: Path) -> int:
    """Check every file of a bundle and unpack it into an empty folder; returns how many. Raises StoreError."""
    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder}: is not empty; name a new folder")
    try:
        with zipfile.ZipFile(path) as archive:
            listed = dict(_checksum_lines(archive.read(CHECKSUMS).decode()))
            names = set(archive.namelist()) - {CHECKSUMS}
            if names != set(listed):
                odd = sorted(names ^ set(listed))[0]
                raise StoreError(f"{path}: the list of checksums and the files differ (for example {odd})")
            for name in sorted(names):
                parts = PurePosixPath(name).parts
                if PurePosixPath(name).is_absolute() or ".." in parts:
                    raise StoreError(f"{path}: the entry {name} leaves the folder; the bundle is not trusted")
                data = archive.read(name)
                if hashlib.sha256(data).hexdigest() != listed[name]:
                    raise StoreError(f"{path}: {name} does not have the checksum it should have; fetch it again")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            (folder / CHECKSUMS).write_bytes(archive.read(CHECKSUMS))
    except (zipfile.BadZipFile, KeyError) as error:
        raise StoreError(f"{path}: is not a whole bundle ({error})") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened into {folder} ({error.strerror or error})") from error
    return len(listed)


def reanalyse(folder: Path, output: Path) -> list[Path]:
    """Judge an opened bundle's raw files anew and build its tables and figures; returns the files written.

    Raises StoreError, ConfigurationError.
    """
    from specjoule.study.load import load_study
    from specjoule.tables.context import Context
    from specjoule.tables.registry import build_all
    from specjoule.windows.collect import collect
    from specjoule.windows.drift import drifts_of
    from specjoule.windows.nested import combine

    study = load_study(folder / "config" / "study.yaml")
    raw_root = folder / "results" / "raw"
    blocks, records = [], []
    for path in sorted((folder / "results" / "blocks" / study.name).glob("*.json")):
        record = read_record(path, "open the bundle again")
        records.append(record)
        files = [raw_root / name for name in record["cells"] if (raw_root / name).is_file()]
        blocks.append(collect(files, raw_root, study.file.validity, drifts_of(record)))
    if not blocks:
        raise StoreError(f"{folder}: holds no blocks of study '{study.name}'; name the folder of an opened bundle")
    rows = pa.concat_tables([b.rows for b in blocks]).to_pandas()
    context = Context(
        rows, study.name, analysis=study.file.analysis, models=study.models,
        drafters=study.drafters, gpus=study.gpus, nested=combine([b.nested for b in blocks]), records=records,
    )  # fmt: skip
    return build_all(context, output)


def _entries(
    project: Project, records: dict[str, Path], redaction: Redaction
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield each entry's name and what gives its content; big ones are read one at a time."""
    yield "config/study.yaml", lambda: _study_file(project)
    for kind in ("models", "drafters", "gpus", "corpora"):
        yield f"config/{kind}.yaml", partial(_catalogue, project, kind)
    for name, corpus in sorted(project.study.corpora.items()):
        path = Path(project.study.root) / corpus.path
        for file in sorted({path, path.with_name("documents.jsonl")} if path.is_file() else set()):
            if file.is_file() and (file == path or name == min(project.study.corpora)):
                yield str(PurePosixPath(corpus.path).with_name(file.name)), file.read_bytes
    for block_id, path in sorted(records.items()):
        yield f"results/blocks/{project.name}/{block_id}.json", partial(_record, path, redaction)
        rows = project.rows(block_id)
        if rows.is_file():
            yield f"results/collected/{project.name}/blocks/{block_id}.parquet", partial(_parquet, rows, redaction)
    for cell in sorted(project.cells, key=lambda c: c.path):
        raw = project.raw_file(cell)
        if raw.is_file():
            yield f"results/raw/{cell.path}", partial(_parquet, raw, redaction)
    if not redaction.names:  # figures and their manifest name hosts and boards nowhere, but are made again anyway
        for path in sorted(p for p in project.figures.rglob("*") if p.is_file()):
            yield (
                str(PurePosixPath("paper_figures") / project.name / path.relative_to(project.figures)),
                path.read_bytes,
            )
    yield "environment.json", lambda: _json(_environment())
    yield "licenses.json", lambda: _json(_licenses(project))
    for name in ("LICENSE", "requirements/lock.txt", "CITATION.cff"):
        path = Path(project.study.root) / name
        if path.is_file():
            yield name, path.read_bytes


def _record(path: Path, redaction: Redaction) -> bytes:
    return redact_record(path.read_text(encoding="utf-8"), redaction).encode()


def _parquet(path: Path, redaction: Redaction) -> bytes:
    if not redaction.names:
        return path.read_bytes()
    sink = pa.BufferOutputStream()
    pq.write_table(redact_table(pq.ParquetFile(path).read(), redaction), sink, compression="zstd")
    return bytes(sink.getvalue())


def _study_file(project: Project) -> bytes:
    import yaml

    content = project.study.file.model_dump(mode="json", exclude_defaults=False)
    content["catalogues"] = {}
    content["engine"]["host_settings"] = {}  # paths of the measuring machine, which no number depends on
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def _catalogue(project: Project, kind: str) -> bytes:
    import yaml

    entries = {
        name: entry.model_dump(mode="json", exclude={"name"}, exclude_none=True)
        for name, entry in getattr(project.study, kind).items()
    }
    return yaml.safe_dump({kind: entries}, sort_keys=False, allow_unicode=True).encode()


def _environment() -> dict[str, Any]:
    packages = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return {
        "specjoule": __version__,
        "protocol_version": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _licenses(project: Project) -> dict[str, Any]:
    study = project.study
    return {
        "code": "Apache-2.0",
        "corpora": {name: c.license for name, c in sorted(study.corpora.items())},
        "models": {name: m.checkpoint.license for name, m in sorted(study.models.items())},
        "drafters": {
            name: {model: c.license for model, c in sorted(d.checkpoints.items())}
            for name, d in sorted(study.drafters.items())
            if d.checkpoints
        },
    }


def _hosts(records: Any) -> frozenset[str]:
    found = set()
    for path in records:
        for segment in read_record(path, RUN_AGAIN)["segments"]:
            if segment.get("host"):
                found.add(str(segment["host"]))
    return frozenset(found)


def _checksum_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
