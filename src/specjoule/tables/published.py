"""Published values beside what the present data say, with the difference in units of noise.

Every value known of the reproduced studies has its row; what these data cannot answer says so with the reason. On
simulated boards the same table is plausibility and never evidence: its label says so, and `parameter` names what of a
finding went into the simulation (docs/simulated-boards.md).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import yaml

from specjoule.meters.base import MEASURED
from specjoule.tables.context import Context
from specjoule.tables.published_answers import Answer, Missing, answer

COLUMNS: tuple[str, ...] = (
    "id", "study", "source", "kind", "quantity", "conditions", "published", "measured", "published_low",
    "published_high", "measured_low", "measured_high", "noise", "difference", "difference_in_noise", "agreement",
    "reason", "parameter", "note", "label",
)  # fmt: skip
SHOWN: tuple[str, ...] = (
    "study", "quantity", "conditions", "published", "measured", "difference", "difference_in_noise", "agreement",
    "reason",
)  # fmt: skip
AGREES, DIFFERS, CANNOT_TELL = "agrees", "differs", "cannot tell"
NOT_ANSWERABLE = "not answerable by these data"
MEASUREMENT = "measured against a published study"
PLAUSIBILITY = "plausibility, not evidence: simulated boards against a published study"
ESTIMATE = "estimated, not measured, against a published study"
IN_NOISE = 2.0
"""A difference of at most this many units of noise agrees."""


def published_values() -> list[dict[str, Any]]:
    """Return the published values that ship with the package."""
    text = files("specjoule.tables").joinpath("published.yaml").read_text(encoding="utf-8")
    values: list[dict[str, Any]] = yaml.safe_load(text)["values"]
    return values


def published_table(context: Context) -> pd.DataFrame:
    """Return one row per published value. Columns: `COLUMNS`.

    `noise` is the standard error of the measured value joined in quadrature with the rounding of the published one
    (half-width over sqrt 3). `difference` is measured minus published; for a range, how far the measured value that
    lies farthest outside lies outside (0: all inside). `difference_in_noise` is difference over noise; of a sign it is
    the least favourable effect in its own standard errors, positive as published. `agreement`: within 2 units of noise
    (within the rounding, where the measured value has no standard error); counts and settings exactly; findings if they
    hold at every place measured; 'cannot tell' where the verdicts themselves cannot. `label`: what such a comparison is
    worth with this meter.
    """
    rows = []
    for item in published_values():
        try:
            found: Answer | None = answer(context, item)
            reason = None
        except Missing as missing:
            found, reason = None, str(missing)
        rows.append({**_told(item), **_compared(item, found), "reason": reason, "label": _label(context)})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _label(context: Context) -> str:
    if "simulated" in context.meters:
        return PLAUSIBILITY
    return MEASUREMENT if set(context.meters) <= MEASURED else ESTIMATE


def _told(item: dict[str, Any]) -> dict[str, Any]:
    conditions = [_condition(k, v) for k, v in (item.get("where") or {}).items()]
    return {
        **{k: item.get(k) for k in ("id", "study", "source", "kind", "quantity", "parameter", "note")},
        "conditions": ", ".join(conditions) or None,
        "published": _published(item),
        "published_low": item.get("low", item.get("value")),
        "published_high": item.get("high", item.get("value")),
    }


def _condition(key: str, value: Any) -> str:
    words = "/".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"concurrency": f"concurrency {words}", "capture": "capture off", "locked_mhz": f"{words} MHz",
            "models": f"{words} models" if isinstance(value, str) else words}.get(key, words)  # fmt: skip


def _published(item: dict[str, Any]) -> str:
    if "value" in item:
        return f"{item['value']:g}"
    if "low" in item:
        return f"{item['low']:g} to {item['high']:g}"
    if "members" in item:
        return ", ".join(map(str, item["members"]))
    if "text" in item:
        return str(item["text"])
    parts = [f"saves up to {item['saves_up_to']}"] if "saves_up_to" in item else []
    return ", ".join([*parts, *([f"costs from {item['costs_from']}"] if "costs_from" in item else [])])


def _compared(item: dict[str, Any], found: Answer | None) -> dict[str, Any]:
    if found is None:
        return {"measured": None, "agreement": NOT_ANSWERABLE}
    if not found.points:
        held = CANNOT_TELL if found.holds is None else AGREES if found.holds else DIFFERS
        return {"measured": found.words, "difference_in_noise": found.in_noise, "agreement": held}
    low, high = (float(item["value"] if "value" in item else item[side]) for side in ("low", "high"))
    half_width = float(item.get("half_width", 0.0))
    outside = [(v - low if v < low else v - high if v > high else 0.0, se) for v, se in found.points]
    noises = [float(np.hypot(np.nan_to_num(se), half_width / np.sqrt(3.0))) for _, se in outside]
    far = int(np.argmax([abs(d) for d, _ in outside]))
    difference, noise = outside[far][0], noises[far]
    unknown = bool(np.isnan(outside[far][1]))
    in_noise = float("nan") if unknown or noise <= 0 else difference / noise
    agrees = abs(difference) <= half_width if np.isnan(in_noise) else abs(in_noise) <= IN_NOISE
    values = [v for v, _ in found.points]
    shown = f"{values[0]:.4g}" if len(values) == 1 else f"{min(values):.4g} to {max(values):.4g}"
    return {
        "measured": shown + (f" ({found.words})" if found.words else ""), "measured_low": min(values),
        "measured_high": max(values), "noise": float("nan") if unknown else noise, "difference": difference,
        "difference_in_noise": in_noise, "agreement": AGREES if agrees else DIFFERS,
    }  # fmt: skip
