"""The settings of each engine that may differ from machine to machine, because no number depends on them.

They stand under `engine.host_settings` and are left out of the cells' hash. Whatever is not listed here changes what is
measured, or might, and belongs under `engine.settings`, where a change makes the cells stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOST_SETTINGS: dict[str, frozenset[str]] = {
    "reference": frozenset({"interpreter", "model_path", "drafter_path"}),
    "sglang": frozenset(
        {
            "interpreter", "entry", "checkpoints", "staging", "offline", "watchdog_s", "start_deadline_s",
            "wave_deadline_s", "stall_s", "stop_grace_s", "ready_poll_s", "board_free_s",
        }
    ),
    "simulated": frozenset(),
    "scripted": frozenset({"seconds_per_wave", "fail"}),
}  # fmt: skip
"""Names by engine: where programs and copies of files lie, how long to wait for them, and scripted troubles."""


def misplaced_keys(engine: str, host_settings: Mapping[str, Any]) -> list[str]:
    """Return the keys of `host_settings` that this engine may not have there, in their order."""
    return [key for key in host_settings if key not in HOST_SETTINGS[engine]]


def doubled_keys(settings: Mapping[str, Any], host_settings: Mapping[str, Any]) -> list[str]:
    """Return the keys that both sections give: one of the two values would be dropped in silence."""
    return [key for key in host_settings if key in settings]
