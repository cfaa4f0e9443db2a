"""The paired energy ratio of two cells, and the refusals that keep it honest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specjoule.errors import PairingError
from specjoule.pairs.keys import PAIR_KEYS, differing_keys


@dataclass(frozen=True)
class PairResult:
    """What a drafter changed against plain decoding on the same board, settings, prompts and seed."""

    energy_ratio: float
    """rho = e_spec / e_plain, dimensionless; e is energy per committed token."""
    saving: float
    """1 - rho; negative where speculation costs energy."""
    e_spec_j: float
    """Energy per committed token of the speculative side, J/token."""
    e_plain_j: float
    """Energy per committed token of the plain side, J/token."""
    speedup: float
    """Throughput of the speculative side over that of the plain side."""
    power_ratio: float
    """Mean power of the speculative side over that of the plain side; rho = power_ratio / speedup."""


def energy_ratio(spec: Mapping[str, Any], plain: Mapping[str, Any]) -> PairResult:
    """Divide a speculative cell attempt by its plain partner.

    rho = (sum E / sum N) of the speculative side over (sum E / sum N) of the plain side, both over all waves
    (*Only Accepted Tokens Count*, paired comparison). Both arguments are rows of `sum_waves` (mappings or Series).

    Raises PairingError naming what forbids the division: capture states that differ, any other differing key of
    `PAIR_KEYS`, the sides swapped, an invalid or incomplete side, or an energy, token count or duration that is null
    or not positive.
    """
    _check_sides(spec, plain)
    e_spec, e_plain = _per_token(spec, "speculative"), _per_token(plain, "plain")
    t_spec, t_plain = _positive(spec, "duration_s", "speculative"), _positive(plain, "duration_s", "plain")
    n_spec, n_plain = float(spec["committed_tokens"]), float(plain["committed_tokens"])
    ratio = e_spec / e_plain
    return PairResult(
        energy_ratio=ratio,
        saving=1.0 - ratio,
        e_spec_j=e_spec,
        e_plain_j=e_plain,
        speedup=(n_spec / t_spec) / (n_plain / t_plain),
        power_ratio=(float(spec["energy_j"]) / t_spec) / (float(plain["energy_j"]) / t_plain),
    )


def _check_sides(spec: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    if plain.get("scheme", "plain") != "plain":
        raise PairingError(f"the denominator must be plain decoding, not {plain.get('drafter')!r}")
    different = differing_keys(spec, plain, PAIR_KEYS)
    if "capture" in different:
        raise PairingError(
            f"capture differs: {spec.get('capture')!r} against {plain.get('capture')!r}; "
            "a ratio across capture states says nothing about the drafter"
        )
    if different:
        shown = "; ".join(f"{k}: {spec.get(k)!r} against {plain.get(k)!r}" for k in different)
        raise PairingError(f"the two sides of a pair differ in more than the drafter: {shown}")
    for side, name in ((spec, "speculative"), (plain, "plain")):
        if side.get("validity", "valid") != "valid":
            raise PairingError(f"the {name} side is {side['validity']} ({side.get('validity_reason')})")
        if not side.get("complete", True):
            raise PairingError(f"the {name} side has {side.get('n_waves')} of {side.get('waves')} waves")


def _per_token(side: Mapping[str, Any], name: str) -> float:
    return _positive(side, "energy_j", name) / _positive(side, "committed_tokens", name)


def _positive(side: Mapping[str, Any], column: str, name: str) -> float:
    value = side.get(column)
    number = math.nan if value is None else float(value)
    if math.isnan(number):
        raise PairingError(f"{column} of the {name} side is missing; a missing reading is never taken for zero")
    if number <= 0 or math.isinf(number):
        raise PairingError(f"{column} of the {name} side is {number:g}; it must be positive")
    return number
