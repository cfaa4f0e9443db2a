"""Does ignoring the end of sequence change the answer? Everything again, up to the first EOS of each batch."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS


def up_to_first_eos(to_eos: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the paired ratio with each wave's energy and tokens taken only up to the batch's first EOS.

    Text after a natural end repeats and is drafted too easily. Per configuration: `ratio_full` and `ratio_to_eos`
    (medians over pairs), `saving_change` = saving up to EOS minus full saving, `cut_share`: share of waves that hold an
    EOS. Waves without one count whole. Configurations without any EOS are left out.
    """
    side_keys = ["segment_id", "cell_hash", "attempt", "launch"]
    sums = to_eos.groupby(side_keys)[["energy_j", "committed_tokens"]].sum()
    sums["cut_share"] = to_eos.groupby(side_keys)["cut"].mean()
    sums["e"] = sums["energy_j"] / sums["committed_tokens"]
    sums = sums.reset_index()
    out = pairs.copy()
    for side in ("spec", "plain"):
        names = {"cell_hash": f"hash_{side}", "attempt": f"attempt_{side}", "launch": f"launch_{side}"}
        mine = sums[[*side_keys, "e", "cut_share"]].rename(
            columns={**names, "e": f"e_{side}", "cut_share": f"cut_{side}"}
        )
        out = out.merge(mine, on=["segment_id", *names.values()], how="inner")
    out["ratio_to_eos"] = out["e_spec"] / out["e_plain"]
    out["cut_share"] = out[["cut_spec", "cut_plain"]].mean(axis=1)
    keys = [k for k in GROUP_KEYS if k in out.columns]
    table = out.groupby(keys, dropna=False).agg(
        n_seeds=("seed", "nunique"), ratio_full=("energy_ratio", "median"), ratio_to_eos=("ratio_to_eos", "median"),
        cut_share=("cut_share", "mean"),
    ).reset_index()  # fmt: skip
    table["saving_change"] = table["ratio_full"] - table["ratio_to_eos"]
    return table.loc[table["cut_share"] > 0].reset_index(drop=True)
