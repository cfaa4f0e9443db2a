"""Which drafters were run on which model, where they come from and how wide they verify."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from specjoule.study.catalogue import Drafter, Model

SHOWN: tuple[str, ...] = (
    "model", "drafter", "scheme", "origin", "draft_tokens", "verify_width", "serial_steps", "draft_parameters",
    "draft_share_of_parameters", "boards", "inferred",
)  # fmt: skip


def schemes_table(rows: pd.DataFrame, models: Mapping[str, Model], drafters: Mapping[str, Drafter]) -> pd.DataFrame:
    """Return models x drafters that occur in the data, with what the catalogue knows of the drafter.

    `draft_parameters`: parameters of the drafter's own weights (count; null where unknown or none);
    `draft_share_of_parameters`: over the target's. Without a catalogue these columns are null.
    """
    keys = ["model", "drafter", "scheme", "draft_tokens", "verify_width"]
    out = (
        rows.groupby(keys, sort=True)["gpu"].unique().map(lambda v: ", ".join(sorted(v))).rename("boards").reset_index()
    )
    facts = []
    for model, drafter in zip(out["model"], out["drafter"], strict=True):
        entry, target = drafters.get(drafter), models.get(model)
        checkpoint = entry.checkpoints.get(model) if entry else None
        parameters = checkpoint.parameters if checkpoint else None
        facts.append({
            "origin": entry.origin if entry else None, "serial_steps": entry.serial_steps if entry else None,
            "draft_parameters": parameters,
            "draft_share_of_parameters": parameters / target.architecture.parameters if parameters and target else None,
            "inferred": bool(entry.inferred or (checkpoint and checkpoint.inferred)) if entry else None,
        })  # fmt: skip
    return pd.concat([out, pd.DataFrame(facts, index=out.index)], axis=1)
