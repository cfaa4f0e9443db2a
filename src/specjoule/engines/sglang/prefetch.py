"""Fetches every checkpoint of a study on a login node: pinned revisions, size told beforehand, licences agreed to.

    snakemake prefetch
    python -m specjoule.engines.sglang.prefetch STUDY.yaml [--to FOLDER] [--forecast] [--accept-license NAME ...]

`engine.host_settings.checkpoints` names FOLDER, and compute nodes never ask the hub for anything. Needs
`huggingface_hub` (in the `reference` extra and in the server's environment).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specjoule.engines.sglang.checkpoints import PLACEHOLDER, folder_name, is_hub_name
from specjoule.errors import ConfigurationError, SpecJouleError
from specjoule.files import write_json
from specjoule.prompts.corpus import canonical_digest
from specjoule.study.catalogue import Checkpoint

COMPLETE = ".specjoule-complete"
OPEN_LICENSES: frozenset[str] = frozenset({"apache-2.0", "mit", "bsd-3-clause", "cc0-1.0"})
"""Licences that ask for no agreement; any other has to be accepted by name."""

NAMED = 12
"""At most so many names in one sentence."""

PATTERNS: tuple[str, ...] = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py", "*.tiktoken")
"""What a server loads; other formats of the same weights are left at the hub."""


@dataclass(frozen=True)
class Wanted:
    """One checkpoint to fetch, and who uses it."""

    path: str
    revision: str
    license: str | None
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class Forecast:
    """What a checkpoint will take."""

    wanted: Wanted
    size_bytes: int
    license: str | None
    gated: bool
    present: bool


class Hub(Protocol):
    """The few things asked of the hub."""

    def describe(self, path: str, revision: str) -> tuple[int, str | None, bool]:
        """Return size (bytes of what would be fetched), licence and whether access is gated."""
        ...

    def fetch(self, path: str, revision: str, folder: Path) -> None:
        """Fetch a pinned checkpoint into a folder."""
        ...


class HuggingFace:
    """The hub through its own client, which knows the user's token."""

    def describe(self, path: str, revision: str) -> tuple[int, str | None, bool]:
        """Ask the hub about one pinned revision."""
        from fnmatch import fnmatch

        from huggingface_hub import HfApi

        info = HfApi().model_info(path, revision=revision, files_metadata=True)
        files = [f for f in info.siblings or () if any(fnmatch(f.rfilename, p) for p in PATTERNS)]
        card: Any = info.card_data or {}
        return sum(f.size or 0 for f in files), card.get("license"), bool(info.gated)

    def fetch(self, path: str, revision: str, folder: Path) -> None:
        """Download what a server loads; an interrupted download is continued."""
        from huggingface_hub import snapshot_download

        snapshot_download(path, revision=revision, local_dir=folder, allow_patterns=list(PATTERNS))


def wanted_checkpoints(study: Any, models: Collection[str] = ()) -> list[Wanted]:
    """Return the checkpoints of the study (or of `models` and their drafters alone), each once.

    Raises ConfigurationError naming those that are not pinned.
    """
    found: dict[tuple[str, str | None], tuple[Checkpoint, list[str]]] = {}
    for what, checkpoint in _used(study, models):
        if is_hub_name(checkpoint.path):
            found.setdefault((checkpoint.path, checkpoint.revision), (checkpoint, []))[1].append(what)
    loose = sorted({path for path, revision in found if revision in (None, PLACEHOLDER)})
    if loose:
        more = f" and {len(loose) - NAMED} more" if len(loose) > NAMED else ""
        raise ConfigurationError(
            f"{len(loose)} checkpoints have no pinned revision ({', '.join(loose[:NAMED])}{more}); run `specjoule "
            "pin`, or write the commit of each into the catalogue: an unpinned checkpoint is another one tomorrow"
        )
    return [
        Wanted(path, str(revision), checkpoint.license, tuple(dict.fromkeys(users)))
        for (path, revision), (checkpoint, users) in found.items()
    ]


def needs_prefetch(study: Any, model: str) -> bool:
    """Say whether a model or one of its drafters is named on the hub and has to be in the study's own folder."""
    engine = study.file.engine
    if engine.name != "sglang" or not {**engine.settings, **engine.host_settings}.get("checkpoints"):
        return False
    return any(is_hub_name(checkpoint.path) for _, checkpoint in _used(study, (model,)))


def checkpoints_digest(study: Any, model: str) -> str:
    """Return a digest of what a model's blocks need: another revision is fetched, an added grid is not."""
    return canonical_digest(sorted({(c.path, str(c.revision)) for _, c in _used(study, (model,))}))[:16]


def _used(study: Any, models: Collection[str] = ()) -> Iterable[tuple[str, Checkpoint]]:
    for grid in study.file.grids.values():
        for name in grid.models:
            if models and name not in models:
                continue
            yield f"model {name}", study.models[name].checkpoint
            for drafter in grid.drafters:
                own = study.drafters[drafter].checkpoints.get(name)
                if own is not None and study.drafters[drafter].applies_to(name):
                    yield f"drafter {drafter} for {name}", own


def forecast(wanted: Sequence[Wanted], folder: Path, hub: Hub) -> list[Forecast]:
    """Ask the hub for size and licence of each; what lies in the folder whole is not asked for."""
    rows = []
    for one in wanted:
        if (folder / folder_name(one.path, one.revision) / COMPLETE).exists():
            rows.append(Forecast(one, 0, one.license, False, True))
            continue
        size, license_name, gated = hub.describe(one.path, one.revision)
        rows.append(Forecast(one, size, license_name or one.license, gated, False))
    return rows


def gate(rows: Sequence[Forecast], accepted: frozenset[str], free_bytes: int) -> None:
    """Raise SpecJouleError if a licence is not agreed to, contradicts the catalogue, or the disk is too small."""
    for row in rows:
        if row.present:
            continue
        stated, told = row.wanted.license, row.license
        if stated is not None and told is not None and stated.lower() != told.lower():
            raise SpecJouleError(
                f"{row.wanted.path}: the catalogue says licence '{stated}', the hub says '{told}'; "
                "read it and correct the catalogue"
            )
        name = told.lower() if told is not None else "unknown"
        if name not in OPEN_LICENSES and name not in accepted:
            raise SpecJouleError(
                f"{row.wanted.path} is under licence '{name}'{' and gated' if row.gated else ''}; read it, then agree "
                f"with --accept-license {name}, or name it in accepted_licenses of config/site.yaml"
            )
    needed = sum(r.size_bytes for r in rows)
    if needed > free_bytes:
        raise SpecJouleError(
            f"{needed / 1e9:.1f} GB are needed, {free_bytes / 1e9:.1f} GB are free: choose another folder"
        )


def fetch_all(rows: Sequence[Forecast], folder: Path, hub: Hub, say: Callable[[str], None]) -> None:
    """Fetch what is not present; a folder counts only once its mark of completeness is written."""
    for row in rows:
        target = folder / folder_name(row.wanted.path, row.wanted.revision)
        if row.present:
            say(f"present   {row.wanted.path}")
            continue
        say(f"fetching  {row.wanted.path} ({row.size_bytes / 1e9:.1f} GB)")
        target.mkdir(parents=True, exist_ok=True)
        hub.fetch(row.wanted.path, row.wanted.revision, target)
        (target / COMPLETE).touch()


def main(arguments: Sequence[str] | None = None, hub: Hub | None = None) -> int:
    """Forecast, check the gates, fetch."""
    from specjoule.cluster.site import load_site, site_path
    from specjoule.study.load import load_study

    parser = argparse.ArgumentParser(description="Fetch every checkpoint of a study, on a node that reaches the hub.")
    parser.add_argument("study")
    parser.add_argument("--overrides", type=json.loads, default={}, help="JSON object of keys that replace the file's")
    parser.add_argument(
        "--to", type=Path, help="folder for all checkpoints (default: engine.host_settings.checkpoints)"
    )
    parser.add_argument("--model", action="append", default=[], help="only this model and its drafters")
    parser.add_argument("--stamp", type=Path, help="file to write when all is there: what was fetched, JSON")
    parser.add_argument("--forecast", action="store_true", help="say sizes and licences, fetch nothing")
    parser.add_argument("--accept-license", action="append", default=[], metavar="NAME")
    options = parser.parse_args(arguments)
    client = hub or HuggingFace()
    try:
        study = load_study(options.study, options.overrides)
        folder = options.to or _folder_of(study)
        rows = forecast(wanted_checkpoints(study, options.model), folder, client)
        for row in rows:
            state = "present" if row.present else f"{row.size_bytes / 1e9:8.1f} GB"
            print(f"{state:>11}  {row.license or 'unknown':<14} {row.wanted.path}  ({', '.join(row.wanted.used_by)})")
        print(f"{sum(r.size_bytes for r in rows) / 1e9:8.1f} GB  to fetch", flush=True)
        if options.forecast:
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        agreed = {*options.accept_license, *load_site(site_path(Path(study.root))).accepted_licenses}
        gate(rows, frozenset(n.lower() for n in agreed), shutil.disk_usage(folder).free)
        fetch_all(rows, folder, client, print)
        if options.stamp is not None:
            options.stamp.parent.mkdir(parents=True, exist_ok=True)
            found = [{"path": r.wanted.path, "revision": r.wanted.revision, "license": r.license} for r in rows]
            write_json(options.stamp, {"folder": str(folder), "checkpoints": found})
    except SpecJouleError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ImportError) as error:
        # Whatever the hub's client raises for a name, a revision, a login or a network is one of these.
        print(f"the hub cannot be read: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def _folder_of(study: Any) -> Path:
    named = {**study.file.engine.settings, **study.file.engine.host_settings}.get("checkpoints")
    if not named:
        raise ConfigurationError("name the folder for checkpoints in engine.host_settings.checkpoints, or with --to")
    return Path(named)


if __name__ == "__main__":
    sys.exit(main())
