"""The power trace of one block, read from its raw files: only for the timeline, so only that block is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def block_timeline(root: Path, rows: pd.DataFrame, points: int = 4000) -> pd.DataFrame:
    """Return power and clock samples and windows of the first segment that has both, in seconds since its start.

    Long frame: `kind` 'power_w' or 'sm_clock_mhz' with `seconds`, `value` (thinned to `points` a channel), and
    'window' with `seconds`, `end_seconds` and `drafter`. Empty where no raw file is at hand.
    """
    generation = rows.loc[(rows["window"] == "generation") & rows["t_start_ns"].notna()]
    for segment, part in generation.groupby("segment_id", sort=True):
        files = [root / f for f in part["raw_file"].drop_duplicates()]
        files = [f for f in files if f.exists()]
        if files:
            frame = _segment(files, str(segment), part, points)
            if not frame.empty:
                return frame
    return pd.DataFrame()


def _segment(files: list[Path], segment: str, part: pd.DataFrame, points: int) -> pd.DataFrame:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    origin = float(part["t_start_ns"].min())
    channels: dict[str, list[np.ndarray]] = {"power_w": [], "sm_clock_mhz": []}
    columns = ["segment_id", "window", "samples.list.element.t_ns", "samples.list.element.channel",
               "samples.list.element.value"]  # fmt: skip
    for file in files:
        table = pq.ParquetFile(file).read(columns=columns)
        table = table.filter(pc.and_(pc.equal(table["segment_id"], segment), pc.equal(table["window"], "generation")))
        flat = pc.list_flatten(table["samples"]).combine_chunks()
        if len(flat) == 0:
            continue
        names = flat.field("channel").to_numpy(zero_copy_only=False)
        seconds = (flat.field("t_ns").to_numpy() - origin) / 1e9
        values = flat.field("value").to_numpy()
        for name, found in channels.items():
            mine = names == name
            found.append(np.column_stack([seconds[mine], values[mine]]))
    frames = []
    for name, found in channels.items():
        data = np.concatenate(found) if found else np.empty((0, 2))
        if len(data) == 0:
            continue
        data = data[np.argsort(data[:, 0], kind="stable")]
        data = data[:: max(1, len(data) // points)]
        frames.append(pd.DataFrame({"kind": name, "seconds": data[:, 0], "value": data[:, 1]}))
    if not frames:
        return pd.DataFrame()
    windows = pd.DataFrame({
        "kind": "window", "seconds": (part["t_start_ns"].astype("float64") - origin) / 1e9,
        "end_seconds": (part["t_end_ns"].astype("float64") - origin) / 1e9, "drafter": part["drafter"],
        "scheme": part["scheme"], "verify_width": part["verify_width"], "concurrency": part["concurrency"],
        "role": part["role"],
    })  # fmt: skip
    what = f"{part['model'].iloc[0]} on {part['gpu'].iloc[0]}, block {part['block_id'].iloc[0]}"
    return pd.concat([*frames, windows], ignore_index=True).assign(block=what)
