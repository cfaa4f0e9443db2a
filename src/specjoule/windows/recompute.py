"""Energies of stored windows, computed again from their traces: after a better calibration, or to check a stranger's.

Raw files stay as they were; what is computed again goes into the collected tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specjoule.meters.base import Calibration, Refreshes, Samples, Trace
from specjoule.meters.recompute import recompute_window
from specjoule.windows.decode import decode_energy


@dataclass(frozen=True)
class Recomputed:
    """A row's energy columns as they come out now."""

    columns: dict[str, Any]
    stored_j: float | None

    @property
    def relative_change(self) -> float | None:
        """New energy over the stored one, minus 1; None where either is unknown."""
        new = self.columns["energy_j"]
        return None if new is None or not self.stored_j else new / self.stored_j - 1


def stored_trace(row: Mapping[str, Any]) -> Trace:
    """Return the trace that a generation row keeps in its nested columns."""
    refreshes: dict[str, list[Mapping[str, Any]]] = {}
    for item in row["refreshes"] or ():
        refreshes.setdefault(item["channel"], []).append(item)
    samples: dict[str, list[Mapping[str, Any]]] = {}
    for item in row["samples"] or ():
        samples.setdefault(item["channel"], []).append(item)
    return Trace(
        {
            name: Refreshes(
                np.array([i["read_start_ns"] for i in items], dtype=np.int64),
                np.array([i["read_end_ns"] for i in items], dtype=np.int64),
                np.array([i["counter_j"] for i in items], dtype=np.float64),
            )
            for name, items in refreshes.items()
        },
        {
            name: Samples(
                np.array([i["t_ns"] for i in items], dtype=np.int64),
                np.array([i["value"] for i in items], dtype=np.float64),
            )
            for name, items in samples.items()
        },
    )


def recompute_rows(
    rows: Sequence[Mapping[str, Any]], calibration: Calibration | None = None
) -> list[Recomputed | None]:
    """Return each row's energy from the trace of its wave; None where a row has no window or no trace.

    `rows` are all rows of one raw file. `calibration` None: the lag that the row was measured with.
    """
    traces = {
        _wave_of(row): stored_trace(row) for row in rows if row["window"] == "generation" and row.get("refreshes")
    }
    out: list[Recomputed | None] = []
    for row in rows:
        trace = traces.get(_wave_of(row))
        if trace is None or row["t_start_ns"] is None:
            out.append(None)
            continue
        lag_ms = row["meter_lag_ms"]
        used = calibration or Calibration(lag_ns=round((lag_ms or 0.0) * 1e6), calibrated=lag_ms is not None)
        start_ns, end_ns, limit_w = row["t_start_ns"], row["t_end_ns"], row["power_limit_w"]
        if row["window"] == "decode":
            step_ns = (end_ns - start_ns) / max(1, row["steps"] or 1)
            found = decode_energy(trace, start_ns, end_ns, step_ns, used, limit_w)
        else:
            found = recompute_window(
                trace, start_ns, end_ns, edges="generation", calibration=used, power_limit_w=limit_w
            )
        duration_s = (row["t_end_ns"] - row["t_start_ns"]) / 1e9
        out.append(
            Recomputed(
                {
                    "energy_j": found.energy_j,
                    "energy_uncertainty_j": found.uncertainty_j,
                    "energy_naive_j": found.naive_j,
                    "power_integral_j": found.power_integral_j,
                    "energy_start_j": found.counter_start_j,
                    "energy_end_j": found.counter_end_j,
                    "power_mean_w": None if found.energy_j is None else found.energy_j / duration_s,
                    "meter_lag_ms": used.lag_ns / 1e6 if used.calibrated else None,
                },
                row["energy_j"],
            )
        )
    return out


def _wave_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["segment_id"], row["launch"], row["attempt"], row["role"], row["wave"])
