"""What a bundle says about itself: RO-Crate 1.1 metadata for machines, a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjoule.blocks.record_file import read_record
from specjoule.files import RUN_AGAIN
from specjoule.version import __version__
from specjoule.workflow import Project

FORMATS = {
    ".parquet": "application/vnd.apache.parquet", ".json": "application/json", ".yaml": "application/yaml",
    ".jsonl": "application/jsonl", ".pdf": "application/pdf", ".png": "image/png", ".csv": "text/csv",
    ".md": "text/markdown", ".tex": "application/x-tex", ".txt": "text/plain", ".html": "text/html",
}  # fmt: skip


def crate_metadata(project: Project, sums: Mapping[str, tuple[str, int]], redacted: tuple[str, ...]) -> dict[str, Any]:
    """Return the RO-Crate metadata document of a bundle with these files (digest and size by name)."""
    title = project.study.file.title or f"SpecJoule study {project.name}"
    files = [
        {
            "@id": name,
            "@type": "File",
            "name": name.rsplit("/", 1)[-1],
            "contentSize": str(size),
            "sha256": digest,
            **({"encodingFormat": FORMATS[end]} if (end := _ending(name)) in FORMATS else {}),
        }
        for name, (digest, size) in sorted(sums.items())
    ]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": title,
        "description": (
            "Raw windows, block records, configuration and results of a study of the energy per committed token of "
            "speculative decoding" + (f"; taken out: {', '.join(redacted)}" if redacted else "")
        ),
        "datePublished": measured_on(project),
        "license": {"@id": "https://creativecommons.org/licenses/by/4.0/"},
        "hasPart": [{"@id": f["@id"]} for f in files],
        "mentions": [{"@id": "#measuring"}],
        "variableMeasured": "energy per committed token (J/token)",
    }
    descriptor = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    license_ = {
        "@id": "https://creativecommons.org/licenses/by/4.0/",
        "@type": "CreativeWork",
        "name": "Creative Commons Attribution 4.0 International",
    }
    software = {
        "@id": "#specjoule",
        "@type": "SoftwareApplication",
        "name": "SpecJoule",
        "softwareVersion": __version__,
    }
    action = {
        "@id": "#measuring",
        "@type": "CreateAction",
        "name": f"Measuring study {project.name}",
        "instrument": {"@id": "#specjoule"},
        "result": {"@id": "./"},
    }
    return {
        "@context": "https://w3id.org/ro/crate/1.1/context",
        "@graph": [descriptor, root, license_, software, action, *files],
    }


def measured_on(project: Project) -> str:
    """Return the date (UTC) on which the newest block of the study ended, from the records."""
    from datetime import UTC, datetime

    ends = [0.0]
    for block in project.blocks:
        record = project.record(block.id)
        if record.is_file():
            segments = read_record(record, RUN_AGAIN)["segments"]
            ends += [float(s.get("ended") or s.get("time") or 0.0) for s in segments]
    return datetime.fromtimestamp(max(ends), UTC).date().isoformat()


def readme(project: Project, redacted: tuple[str, ...], missing: int) -> str:
    """Return the page that explains a bundle."""
    study = project.study
    lines = [
        f"# {study.file.title or project.name}",
        "",
        f"Study `{project.name}`, measured with SpecJoule {__version__}: {len(project.cells)} cells, "
        f"{len(study.models)} models, {len(study.drafters)} drafters, {len(study.gpus)} kinds of board.",
        "",
        "Every number in its tables and figures can be computed again from the raw windows in here:",
        "",
        "    pip install specjoule",
        "    specjoule unbundle BUNDLE.zip FOLDER      # checks every file",
        "    specjoule reanalyse FOLDER OUTPUT         # judges the windows anew, builds tables and figures",
        "",
        "`config/` holds the study and what its names mean, `prompts/` the prompts, `results/raw/` one file a cell",
        "with every request and the meter's trace, `results/blocks/` what is known of each job, `environment.json` and",
        "`requirements/lock.txt` what it ran with, `licenses.json` under which terms the parts stand.",
        "The measured data is licensed CC BY 4.0, the code Apache-2.0.",
    ]
    if redacted:
        lines += ["", f"Taken out: {', '.join(redacted)}. Host and board names are stand-ins, the same throughout."]
    if missing:
        lines += ["", f"{missing} cells were not measured when this was written."]
    return "\n".join(lines) + "\n"


def _ending(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:] if dot > name.rfind("/") else ""
