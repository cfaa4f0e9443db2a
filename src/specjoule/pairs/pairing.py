"""Every speculative cell finds its plain partner, or is excluded with the reason.

Which attempt counts is fixed before the data: the newest segment in which both sides finished, and in it each side's
first valid attempt. An older segment is never taken because its number pleases. Closing references (role 'reference')
measure drift and are no partners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from specjoule.pairs.cells import join_codes
from specjoule.pairs.keys import CELL_KEYS, PARTNER_KEYS, RELAXED_KEYS, SETTING_KEYS, group_ids
from specjoule.reasons import Reason
from specjoule.study.model import MATCHED, PLAIN

_KEPT_ONCE = (
    *PARTNER_KEYS, "drafter", "scheme", "draft_tokens", "verify_width", "language", "meter", "gpu_uuid", "gpu_name",
    "engine", "host", "ngram_state", "grid", "block_drift", "protocol_version", "started_at", "waves", "n_waves",
    "power_limit_w", "weight_dtype", "kv_dtype", "unique_prompts",
)  # fmt: skip
_BOTH_SIDES = {
    "j_per_token": "e_{}_j", "energy_j": "energy_{}_j", "committed_tokens": "tokens_{}", "duration_s": "duration_{}_s",
    "energy_uncertainty_j": "uncertainty_{}_j", "power_mean_w": "power_{}_w", "throughput_tok_s": "throughput_{}_tok_s",
    "itl_mean_ms": "itl_{}_ms", "itl_p50_ms": "itl_p50_{}_ms", "itl_p95_ms": "itl_p95_{}_ms",
    "itl_p99_ms": "itl_p99_{}_ms", "ttft_mean_ms": "ttft_{}_ms", "stall_max_ms": "stall_{}_ms",
    "realized_batch": "realized_batch_{}", "host_energy_j": "host_energy_{}_j", "energy_true_j": "energy_true_{}_j",
    "rounds": "rounds_{}", "steps": "steps_{}", "accepted_draft_tokens": "accepted_{}", "cell_hash": "hash_{}",
    "attempt": "attempt_{}", "launch": "launch_{}", "raw_file": "raw_file_{}", "sm_clock_mean_mhz": "clock_{}_mhz",
    "power_capped_share": "power_capped_{}_share",
}  # fmt: skip

EXCLUDED_COLUMNS: tuple[str, ...] = (
    "study", "model", "gpu", "drafter", "scheme", "concurrency", "corpus", "context_tokens", "seed", "replicate",
    "capture", "locked_mhz", "status", "reason", "reason_detail", "realized_batch", "capacity_requests", "block_id",
    "segment_id", "cell_hash", "meter",
)  # fmt: skip


@dataclass(frozen=True)
class Pairs:
    """Pairs that may be divided, and every other speculative cell with the reason codes that keep it out."""

    pairs: pd.DataFrame
    excluded: pd.DataFrame


def make_pairs(cells: pd.DataFrame, decode_cells: pd.DataFrame | None = None) -> Pairs:
    """Pair every speculative cell of `cells` (from `sum_waves`) with plain decoding in the same segment.

    Every speculative cell is accounted for exactly once, in `pairs` or in `excluded`. Columns of `pairs`: the factors;
    `energy_ratio` rho, `saving` 1 - rho; `e_spec_j`, `e_plain_j` (J/token); `speedup` (throughput ratio),
    `power_ratio` (rho = power_ratio / speedup); `r_e`, the ratio of mean energy per step, with `r_e_window` saying
    whether it comes from the decode windows of `decode_cells` or, where one side has none that is valid, from the
    generation windows (then the prefill is in it); `a_spec` and `a_plain`, tokens committed per request and round in
    that same window; latencies (ms), energies (J) and hashes of both sides. A 'plain-matched' cell is paired like a
    drafter, and gives `energy_ratio_matched` = e_spec / e_plain_matched to the drafters of its group.

    Columns of `excluded`: the factors, `status`, `reason` (comma-separated codes of `Reason`), `reason_detail`.
    """
    mine = cells.loc[cells["role"] == "cell"]
    spec = _counted(mine.loc[mine["scheme"] != PLAIN])
    plain = _counted(mine.loc[mine["scheme"] == PLAIN])
    joined = _join(spec, plain)
    reasons, details = _judge(joined, plain)
    keep = (reasons == "").to_numpy(dtype=bool)
    excluded = _excluded(joined.loc[~keep], reasons.loc[~keep], details.loc[~keep])
    pairs = _with_ratios(joined.loc[keep])
    pairs = _with_rounds(pairs, decode_cells)
    return Pairs(_with_matched(pairs).reset_index(drop=True), excluded)


def _counted(side: pd.DataFrame) -> pd.DataFrame:
    """Keep one attempt per cell and segment: the first valid one, else the first that finished, else the first."""
    side = side.copy()
    finished = side["status"].isin(["ok", "partial", "infeasible"]) & (side["complete"] | (side["status"] != "ok"))
    side["finished"] = finished
    side["_rank"] = np.where(finished & (side["validity"] == "valid"), 0, np.where(finished, 1, 2))
    side["_cell"] = group_ids(side, CELL_KEYS)
    side = side.sort_values(["_rank", "attempt", "launch"], kind="stable")
    return side.drop_duplicates(["_cell", "segment_id"])


def _join(spec: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Join on the partner keys, then keep each cell's newest segment in which both sides finished."""
    plain = plain.drop(columns=["_cell", "_rank"])
    plain = plain.sort_values("finished", ascending=False, kind="stable").drop_duplicates(list(PARTNER_KEYS))
    right = plain.rename(columns={c: f"plain_{c}" for c in plain.columns if c not in PARTNER_KEYS})
    both = spec.merge(right, on=list(PARTNER_KEYS), how="left")
    both["_both"] = both["finished"] & both["plain_finished"].eq(True)
    both["_segment_start"] = both.groupby("segment_id", dropna=False)["started_at"].transform("min")
    both = both.sort_values(["_both", "finished", "_segment_start", "segment_id"], ascending=False, kind="stable")
    return both.drop_duplicates("_cell").sort_index().reset_index(drop=True)


def _judge(joined: pd.DataFrame, plain: pd.DataFrame) -> tuple[pd.Series[str], pd.Series[str]]:
    """Give each joined cell the reason codes that exclude it (empty: none) and the detail behind them."""
    reason = pd.Series("", index=joined.index, dtype="str")
    detail = pd.Series("", index=joined.index, dtype="str")

    def put(mask: pd.Series[bool], codes: str | pd.Series[str], text: str | pd.Series[str] = "") -> None:
        free = mask.fillna(False).astype(bool) & (reason == "")
        reason.loc[free] = codes if isinstance(codes, str) else codes.loc[free]
        detail.loc[free] = text if isinstance(text, str) else text.loc[free]

    own = joined["reason"].fillna("").astype("str")
    judged = joined["validity_reason"].fillna("").astype("str")
    own_text = joined["reason_detail"].fillna("").astype("str")
    default = joined["status"].map(
        {"partial": Reason.CAPACITY.value, "infeasible": Reason.NOT_REPORTED.value, "failed": Reason.INTERRUPTED.value}
    )
    put(joined["status"] != "ok", own.where(own != "", default.fillna("").astype("str")), own_text)
    put(
        joined["validity"] == "invalid",
        judged.where(judged != "", Reason.NOT_REPORTED.value),
        own_text.where(own_text != "", "invalid"),
    )
    put(~joined["complete"], Reason.INTERRUPTED.value, "waves are missing")
    put(joined["validity"] == "not_measured", judged.where(judged != "", Reason.NO_METER.value), "no energy")
    none = joined["plain_finished"].isna()
    near = _relaxed(joined, plain)
    put(none & (near != ""), Reason.KEYS_DIFFER.value, near)
    put(none | joined["plain_finished"].eq(False), Reason.NO_PLAIN_PARTNER.value)
    plain_reason = joined["plain_validity_reason"].fillna("").astype("str")
    put(joined["plain_status"] == "partial", Reason.PLAIN_PARTIAL.value)
    put(joined["plain_status"].isin(["infeasible", "failed"]), Reason.NO_PLAIN_PARTNER.value, "plain did not run")
    put(joined["plain_validity"] != "valid", Reason.PLAIN_INVALID.value, plain_reason)
    differ = _differences(joined)
    put(differ != "", Reason.KEYS_DIFFER.value, differ)
    for side in ("", "plain_"):
        put(joined[f"{side}energy_j"].isna(), Reason.NO_METER.value, f"{side or 'own '}energy is missing")
        put(np.isinf(joined[f"{side}energy_j"]), Reason.NO_METER.value, f"{side or 'own '}energy is not finite")
        put(~(joined[f"{side}energy_j"] > 0), Reason.ZERO_ENERGY.value)
        seconds = joined[f"{side}duration_s"]
        put(~np.isfinite(seconds), Reason.NOT_REPORTED.value, f"{side or 'own '}duration is missing")
        put(~(seconds > 0), Reason.WINDOW_TOO_SHORT.value, f"{side or 'own '}duration is not positive")
        put(~(joined[f"{side}committed_tokens"] > 0), Reason.NO_TOKENS.value)
    return reason, detail


def _differences(joined: pd.DataFrame) -> pd.Series[str]:
    """Name, per row, the setting keys that differ between the two sides (empty: none)."""
    names = pd.Series("", index=joined.index, dtype="str")
    for key in SETTING_KEYS:
        if key not in joined.columns:
            continue
        a, b = joined[key], joined[f"plain_{key}"]
        same = (a.isna() & b.isna()) | (a == b).fillna(False).astype(bool)
        names = names.where(same, names + f",{key}")
    return names.str.lstrip(",")


def _relaxed(joined: pd.DataFrame, plain: pd.DataFrame) -> pd.Series[str]:
    """Name the relaxed keys (capture, clock ...) that alone keep a plain cell of the segment from being the partner."""
    names = pd.Series("", index=joined.index, dtype="str")
    for key in sorted(RELAXED_KEYS):
        keys = [k for k in PARTNER_KEYS if k != key]
        seen = plain[keys].drop_duplicates().assign(_near=True)
        near = joined[keys].merge(seen, on=keys, how="left")["_near"].eq(True).to_numpy()
        names = names.where(~near, names + f",{key}")
    return names.str.lstrip(",")


def _excluded(rows: pd.DataFrame, reasons: pd.Series[str], details: pd.Series[str]) -> pd.DataFrame:
    out = rows.assign(reason=reasons.map(lambda r: join_codes([r])), reason_detail=details)
    return out[[c for c in EXCLUDED_COLUMNS if c in out.columns]].reset_index(drop=True)


def _with_ratios(both: pd.DataFrame) -> pd.DataFrame:
    out = both[[c for c in _KEPT_ONCE if c in both.columns]].copy()
    for column, pattern in _BOTH_SIDES.items():
        if column in both.columns:
            out[pattern.format("spec")] = both[column]
            out[pattern.format("plain")] = both[f"plain_{column}"]
    out["energy_ratio"] = out["e_spec_j"] / out["e_plain_j"]
    out["saving"] = 1.0 - out["energy_ratio"]
    out["speedup"] = out["throughput_spec_tok_s"] / out["throughput_plain_tok_s"]
    out["power_ratio"] = out["power_spec_w"] / out["power_plain_w"]
    out["_r_e"] = both["j_per_step"] / both["plain_j_per_step"]
    out["_a_spec"] = both["committed_per_round"]
    out["_a_plain"] = both["plain_committed_per_round"]
    return out


def _with_rounds(pairs: pd.DataFrame, decode_cells: pd.DataFrame | None) -> pd.DataFrame:
    """Add r_e, a_spec, a_plain from decode windows where both sides have a valid one, else from generation windows."""
    pairs = pairs.copy()
    columns = ("j_per_step", "committed_per_round", "realized_batch", "j_per_token")
    for side in ("spec", "plain"):
        names = {c: f"_{c}_{side}" for c in columns}
        if decode_cells is None or decode_cells.empty:
            for name in names.values():
                pairs[name] = np.nan
            continue
        good = decode_cells.loc[(decode_cells["validity"] == "valid") & (decode_cells["role"] == "cell")]
        keys = ["segment_id", "cell_hash", "attempt", "launch"]
        mine = good[[*keys, *columns]].drop_duplicates(keys).rename(columns=names)
        mine = mine.rename(
            columns={"cell_hash": f"hash_{side}", "attempt": f"attempt_{side}", "launch": f"launch_{side}"}
        )
        pairs = pairs.merge(mine, on=["segment_id", f"hash_{side}", f"attempt_{side}", f"launch_{side}"], how="left")
    r_decode = pairs["_j_per_step_spec"] / pairs["_j_per_step_plain"]
    usable = r_decode.notna() & pairs["_committed_per_round_spec"].notna()
    pairs["r_e"] = r_decode.where(usable, pairs["_r_e"])
    pairs["r_e_window"] = np.where(usable, "decode", "generation")
    pairs["a_spec"] = pairs["_committed_per_round_spec"].where(usable, pairs["_a_spec"])
    pairs["a_plain"] = pairs["_committed_per_round_plain"].where(usable, pairs["_a_plain"])
    pairs["a_generation_spec"] = pairs["_a_spec"]
    pairs["j_per_step_decode_spec"] = pairs["_j_per_step_spec"]
    pairs["j_per_step_decode_plain"] = pairs["_j_per_step_plain"]
    pairs["batch_decode_spec"] = pairs["_realized_batch_spec"]
    pairs["energy_ratio_decode"] = pairs["_j_per_token_spec"] / pairs["_j_per_token_plain"]
    return pairs.drop(columns=[c for c in pairs.columns if c.startswith("_")])


def _with_matched(pairs: pd.DataFrame) -> pd.DataFrame:
    """Add e_plain_matched_j (J/token) and the ratio to it, where the segment holds a plain-matched cell."""
    keys = list(PARTNER_KEYS)
    matched = pairs.loc[pairs["scheme"] == MATCHED, [*keys, "e_spec_j"]].drop_duplicates(keys)
    out = pairs.merge(matched.rename(columns={"e_spec_j": "e_plain_matched_j"}), on=keys, how="left")
    out["energy_ratio_matched"] = (out["e_spec_j"] / out["e_plain_matched_j"]).where(out["scheme"] != MATCHED)
    return out
