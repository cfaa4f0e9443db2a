"""The manifest of an output directory: which study, code and cells its items came from, and what was left out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specjoule.files import write_text
from specjoule.tables.provenance import known_meters, provenance_words
from specjoule.tables.render import count_reasons
from specjoule.version import PROTOCOL_VERSION, __version__

NAME = "manifest.json"


def write_manifest(
    directory: Path,
    *,
    study: str,
    cells: pd.DataFrame,
    pairs: pd.DataFrame,
    excluded: pd.DataFrame,
    items: Iterable[Mapping[str, Any]],
    commit: str | None = None,
) -> Path:
    """Write manifest.json into `directory` and return its path.

    It names the study, the code (version, commit, protocol), the meters in words, the hashes of the cells used on
    both sides of pairs, every excluded cell with its reason and the counts by reason, and each item with its question,
    rule and files. No time stamp and no path of this machine: the same data give the same bytes.
    """
    meters = known_meters(cells["meter"].unique())
    watts = sorted({float(w) for w in cells.get("assumed_w_per_core", pd.Series(dtype="float64")).dropna()})
    used = sorted({*pairs.get("hash_spec", pd.Series(dtype="str")), *pairs.get("hash_plain", pd.Series(dtype="str"))})
    columns = [c for c in ("cell_hash", "drafter", "model", "gpu", "concurrency", "corpus", "seed", "reason",
                           "reason_detail") if c in excluded.columns]  # fmt: skip
    content = {
        "study": study,
        "code": {"version": __version__, "commit": commit or code_commit(), "protocol_version": PROTOCOL_VERSION},
        "measured_with": sorted({str(c) for c in cells.get("git_commit", pd.Series(dtype="str")).dropna().unique()}),
        "meters": list(meters),
        "energy": provenance_words(meters, watts),
        "assumed_w_per_core": watts,
        "cells": {"attempts": len(cells), "pairs": len(pairs), "excluded": len(excluded)},
        "excluded_by_reason": count_reasons(excluded),
        "excluded_cells": json.loads(excluded[columns].to_json(orient="records")),
        "cells_used": used,
        "items": [dict(i) for i in items],
    }
    path = directory / NAME
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, sort_keys=False) + "\n")
    return path


def code_commit() -> str | None:
    """Return the commit of the source tree this library runs from ('-dirty' with changes), or None outside git."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "."],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")
