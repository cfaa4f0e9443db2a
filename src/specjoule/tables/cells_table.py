"""Every cell of a study: what it consumed, what it delivered, and whether it counts."""

from __future__ import annotations

import pandas as pd

COLUMNS: tuple[str, ...] = (
    "model", "gpu", "drafter", "draft_tokens", "verify_width", "concurrency", "corpus", "context_tokens", "seed",
    "replicate", "capture", "locked_mhz", "instrumentation", "role", "attempt", "status", "validity", "reasons",
    "realized_batch", "n_waves", "duration_s", "energy_j", "energy_uncertainty_j", "committed_tokens", "rounds",
    "steps", "j_per_token",
    "committed_per_round", "j_per_step", "itl_mean_ms", "throughput_tok_s", "power_mean_w", "host_energy_j", "meter",
    "segment_id", "cell_hash",
)  # fmt: skip
SHOWN: tuple[str, ...] = (
    "model", "gpu", "drafter", "concurrency", "corpus", "context_tokens", "seed", "replicate", "capture", "locked_mhz",
    "instrumentation", "role", "status", "validity", "reasons", "realized_batch", "j_per_token", "committed_per_round",
    "itl_mean_ms", "power_mean_w",
)  # fmt: skip


def cells_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return all cell attempts (rows of `sum_waves`), sorted by factor; nothing is left out.

    `j_per_token` is energy over tokens delivered (J/token), summed over waves; `reasons` unites the run's reason and
    the codes of the verdict.
    """
    out = cells.copy()
    run, judged = (out[c].fillna("").astype("str") for c in ("reason", "validity_reason"))
    joined = (run + "," + judged).str.strip(",")
    out["reasons"] = joined.where(run != judged, run)
    out["reasons"] = out["reasons"].where(out["reasons"] != "")
    order = ["model", "gpu", "corpus", "capture", "locked_mhz", "concurrency", "verify_width", "drafter", "seed"]
    out = out.sort_values([*order, "replicate", "role", "attempt"], kind="stable")
    return out[[c for c in COLUMNS if c in out.columns]].reset_index(drop=True)
