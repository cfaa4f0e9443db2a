"""What one probe found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of `specjoule check`."""

    name: str
    level: Level
    """ok; warn: measuring is possible and the numbers say so or are noisier; fail: nothing can be measured."""
    found: str
    remedy: str | None = None
    """What to do about it; None where nothing needs doing."""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding JSON-ready."""
        return asdict(self)
