"""What did not count, and how steady the ground was: exclusions, drift, boards, settings, output agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.pairs.keys import group_ids
from specjoule.reasons import Reason


def outcomes(excluded: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Count cells that are in no pair, by reason: one row per model, board, drafter and reason code.

    Plain cells that are invalid, partial or did not run are listed too. `concurrencies`: where; `capacity_requests`:
    the largest number of requests the server could run, where it said so; `meaning`: the code's sentence.
    """
    plain = cells.loc[(cells["role"] == "cell") & (cells["scheme"] == "plain")]
    bad = plain.loc[(plain["status"] != "ok") | (plain["validity"] != "valid")]
    bad = bad.assign(reason=bad["validity_reason"].fillna(bad["reason"]).fillna(str(Reason.NOT_REPORTED)))
    columns = ["model", "gpu", "drafter", "concurrency", "status", "reason", "capacity_requests"]
    both = pd.concat([excluded[columns], bad[columns]], ignore_index=True)
    if both.empty:
        return pd.DataFrame(
            columns=["model", "gpu", "drafter", "status", "reason", "cells", "concurrencies", "meaning"]
        )
    both = both.assign(reason=both["reason"].str.split(",")).explode("reason")
    keys = ["model", "gpu", "drafter", "status", "reason"]
    grouped = both.groupby(keys, dropna=False, sort=True)
    out = grouped.agg(cells=("concurrency", "size"), capacity_requests=("capacity_requests", "max"))
    names = grouped["concurrency"].unique().map(lambda v: ", ".join(str(int(c)) for c in sorted(v)))
    out["concurrencies"] = names
    out = out.reset_index()
    meaning = {r.value: r.text for r in Reason}
    out["meaning"] = out["reason"].map(meaning)
    return out


def block_drifts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the drift of each segment, capture state and clock: closing plain over first plain, minus 1.

    `reason` is 'no_closing_plain' where there is none.
    """
    keys = ["model", "gpu", "seed", "replicate", "block_id", "segment_id", "gpu_uuid", "capture", "locked_mhz"]
    out = rows.groupby(keys, dropna=False, sort=True).agg(
        block_drift=("block_drift", "first"), cells=("cell_hash", "nunique"), started_at=("started_at", "min")
    ).reset_index()  # fmt: skip
    missing = out["block_drift"].isna()
    out["reason"] = pd.Series(np.where(missing, str(Reason.NO_CLOSING_PLAIN), ""), index=out.index).where(missing)
    return out


def board_spread(pairs: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Return per model and board type how much single boards differ, in percent (null with one board).

    Plain J/token and paired ratio, each relative to the mean over boards of the same configuration, averaged over
    configurations per board; standard deviation and range over boards. A board's price of plain decoding cancels in the
    ratio; what remains in the ratio does not.
    """
    frames = []
    plain = counted.loc[counted["scheme"] == "plain"].assign(value=lambda f: f["j_per_token"], what="plain J/token")
    ratio = pairs.assign(value=pairs["energy_ratio"], what="energy ratio")
    for frame in (plain, ratio):
        keys = ["model", "gpu", "drafter", "concurrency", "corpus", "capture", "locked_mhz", "context_tokens"]
        mean = frame.groupby(keys, dropna=False)["value"].transform("mean")
        frames.append(
            frame.assign(relative=np.log(frame["value"] / mean))[["what", "model", "gpu", "gpu_uuid", "relative"]]
        )
    both = pd.concat(frames, ignore_index=True)
    per_board = both.groupby(["what", "model", "gpu", "gpu_uuid"], dropna=False)["relative"].mean().reset_index()
    out = per_board.groupby(["what", "model", "gpu"], dropna=False)["relative"].agg(["size", "std", "min", "max"])
    out = out.reset_index().rename(columns={"size": "boards"})
    out["spread_percent"], out["range_percent"] = 100 * out["std"], 100 * (out["max"] - out["min"])
    return out.drop(columns=["std", "min", "max"])


def settings_differences(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the settings beyond speculation in which the two sides of pairs differ, from the block records.

    One row for each drafter, plain side, setting and pair of values; `blocks`: how many have it. A drafter that was
    compared and differs in nothing has one row of kind 'none'.
    """
    found = []
    for record in records:
        for compared in (c for s in record.get("segments", ()) for c in s.get("settings_compared", ())):
            place = {"block_id": record.get("block_id"), "drafter": compared["drafter"], "against": compared["against"]}
            nothing = [{"setting": "", "kind": "none", "plain": "", "value": ""}]
            found += [{**place, **{k: str(v) for k, v in d.items()}} for d in compared["differences"] or nothing]
    keys = ["drafter", "against", "kind", "setting", "plain", "value"]
    if not found:
        return pd.DataFrame(columns=[*keys, "blocks"])
    return pd.DataFrame(found).groupby(keys)["block_id"].nunique().rename("blocks").reset_index()


def agreement(requests: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return how often answers equal plain's, beside the control: plain against a second launch of plain.

    Per model, board, drafter, concurrency and text over all blocks: `answers`, `same_share` (whole answers with the
    same tokens as plain's of the same segment, prompt and batch), `control_share` (closing plain against first plain,
    null where there is no closing launch of that cell), `control_answers`.
    """
    # Numbers instead of names from here on: a full grid has a million answers.
    cells = cells.reset_index(drop=True)
    known = requests.loc[requests["output_digest"] != 0]
    work = known[["wave", "prompt_id", "output_digest"]].assign(_cell=_cell_of(known, cells))
    work = work.loc[work["_cell"] >= 0]
    place = group_ids(cells, ["segment_id", "corpus", "concurrency", "capture", "locked_mhz"])
    first = ((cells["scheme"] == "plain") & (cells["role"] == "cell")).to_numpy(dtype=bool)
    again = (cells["role"] == "reference").to_numpy(dtype=bool)
    spec = ((cells["scheme"] != "plain") & (cells["role"] == "cell")).to_numpy(dtype=bool)
    work["_place"] = place[work["_cell"]]
    keys = ["_place", "wave", "prompt_id"]
    plain = work.loc[first[work["_cell"]], [*keys, "output_digest"]].drop_duplicates(keys)
    both = work.merge(plain.rename(columns={"output_digest": "_plain"}), on=keys)
    same = (both["output_digest"] == both["_plain"]).groupby(both["_cell"]).agg(["size", "sum"])
    shown = ["model", "gpu", "drafter", "corpus", "concurrency", "capture"]
    out = _shares(same.loc[spec[same.index]], cells, shown, "answers", "same_share")
    shown.remove("drafter")
    control = _shares(same.loc[again[same.index]], cells, shown, "control_answers", "control_share")
    return out.merge(control, on=shown, how="left")


def _cell_of(requests: pd.DataFrame, cells: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the position in `cells` of each request's attempt, -1 where there is none."""
    own = ["cell_hash", "segment_id", "attempt", "launch", "role"]
    ids = group_ids(requests, own)
    _, where = np.unique(ids, return_index=True)
    numbered = cells[own].assign(_cell=np.arange(len(cells)))
    found = requests[own].iloc[where].merge(numbered, on=own, how="left")["_cell"]
    return np.asarray(found.fillna(-1).to_numpy(dtype=np.int64)[ids], dtype=np.int64)


def _shares(same: pd.DataFrame, cells: pd.DataFrame, shown: list[str], size: str, share: str) -> pd.DataFrame:
    """Pool (size, sum) of equal answers per cell over what is shown."""
    pooled = cells.loc[same.index, shown].join(same).groupby(shown, dropna=False)[["size", "sum"]].sum()
    out = pd.DataFrame({size: pooled["size"], share: pooled["sum"] / pooled["size"]})
    return out.reset_index()
