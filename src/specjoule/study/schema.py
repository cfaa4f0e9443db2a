"""JSON schemas of the study file and the catalogues, for editors and for `config/schemas/`."""

from __future__ import annotations

from typing import Any

from specjoule.study.load import CATALOGUES
from specjoule.study.model import StudyFile


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **StudyFile.model_json_schema()}


def catalogue_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of the catalogue `kind` (models, drafters, gpus, corpora)."""
    entry = CATALOGUES[kind].model_json_schema()
    definitions = entry.pop("$defs", {})
    entry["required"] = [key for key in entry.get("required", []) if key != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": [kind],
        "properties": {kind: {"type": "object", "additionalProperties": entry}},
        "$defs": definitions,
    }
