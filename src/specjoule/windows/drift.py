"""How far a board drifted within a segment, from the block's record, and from where on its windows do not count.

Collect and `status` ask here, so that what is said of a block while it runs is what its tables will say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjoule.study.model import ValidityConfig

Drifts = Mapping[tuple[str, bool, int | None], float | None]
"""A block's drift by (segment, capture, locked clock)."""


def drifts_of(record: Mapping[str, Any]) -> dict[tuple[str, bool, int | None], float | None]:
    """Return the drift by (segment, capture, locked clock) from a block's record."""
    return {
        (segment["segment_id"], item["capture"], item["locked_mhz"]): item["drift"]
        for segment in record["segments"]
        for item in segment["drift"]
    }


def beyond_limit(drift: float | None, rules: ValidityConfig) -> bool:
    """Say whether what was measured under this drift does not count; an unknown drift excludes nothing."""
    return drift is not None and abs(drift) > rules.max_block_drift
