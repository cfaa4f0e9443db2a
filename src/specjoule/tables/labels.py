"""Headings with units for the columns of tables and the axes of figures."""

from __future__ import annotations

LABELS: dict[str, str] = {
    "model": "Model", "gpu": "Board", "drafter": "Drafter", "scheme": "Scheme", "concurrency": "Concurrency (requests)",
    "corpus": "Corpus", "seed": "Seed", "replicate": "Replicate", "capture": "Graph capture",
    "locked_mhz": "Locked clock (MHz)", "draft_tokens": "Proposed k", "verify_width": "Verified w",
    "context_tokens": "Context (tokens)", "status": "Status", "validity": "Validity", "meter": "Meter",
    "reason": "Reason", "validity_reason": "Reason", "realized_batch": "Realized batch (requests)",
    "j_per_token": "Energy (J/token)", "energy_j": "Energy (J)", "committed_tokens": "Committed tokens",
    "committed_per_round": "Committed per round (tokens)", "j_per_step": "Energy per step (J)",
    "itl_mean_ms": "Interval (ms/token)", "throughput_tok_s": "Throughput (tokens/s)", "power_mean_w": "Power (W)",
    "n_seeds": "Seeds", "n_pairs": "Pairs", "ratio_median": "Ratio (median)", "ratio_half_range": "Half-range",
    "saving_median": "Saving (median)", "saving": "Saving", "energy_ratio": "Energy ratio",
    "ratio_totals": "Ratio of totals", "saving_totals": "Saving of totals", "tasks": "Tasks", "speedup": "Speed-up",
    "power_ratio": "Power ratio", "r_e": "Energy-per-step ratio", "a_spec": "Committed per round (tokens)",
    "e_spec_j": "Speculative (J/token)", "e_plain_j": "Plain (J/token)", "itl_spec_ms": "Speculative (ms/token)",
    "itl_plain_ms": "Plain (ms/token)", "n_waves": "Waves", "waves": "Waves planned", "complete": "Complete",
    "duration_s": "Duration (s)", "rounds": "Rounds", "steps": "Steps", "attempt": "Attempt", "role": "Role",
    "energy_uncertainty_j": "Uncertainty (J)", "r_e_window": "Step energy from", "best_drafter": "Best drafter",
    "runner_up": "Runner-up", "saving_runner_up": "Saving of runner-up", "candidates": "Drafters compared",
    "saving_low": "Saving, low", "saving_high": "Saving, high", "verdict": "Verdict",
    "ratio_low": "Ratio, low", "ratio_high": "Ratio, high", "n_boards": "Boards", "block_id": "Block",
    "n_blocks": "Blocks", "n_ratios": "Relaunches", "dof": "Degrees of freedom", "sd_percent": "SD of one pair (%)",
    "intraclass_correlation": "Correlation within a block", "floor_1_percent": "Seen by 1 block (%)",
    "floor_3_percent": "by 3 (%)", "floor_5_percent": "by 5 (%)", "floor_10_percent": "by 10 (%)",
    "capacity_requests": "Capacity (requests)", "reason_detail": "Detail", "tie": "Tie", "host_energy_j": "Host (J)",
}  # fmt: skip


def label(column: str) -> str:
    """Return the heading of a column; an unlisted name is shown as it is, with its unit suffix readable."""
    words = column.replace("_", " ")
    return LABELS.get(column, words[:1].upper() + words[1:])
