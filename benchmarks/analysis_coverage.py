"""Coverage of the intervals on 1,000 simulated studies at 3, 5 and 10 seeds, through the real analysis.

Run: python benchmarks/analysis_coverage.py [--studies 1000] [--write docs/statistics.md]
The result replaces the text between the two coverage markers of the page.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd

from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import make_pairs
from specjoule.statistics.intervals import with_intervals
from specjoule.statistics.nested import with_wave_variance
from specjoule.statistics.synthetic import Truth, simulate, true_ratio

SCENARIOS: dict[str, tuple[Truth, bool]] = {
    "default: skewed prompts, launch, board, drift, meter": (Truth(), False),
    "strongly skewed prompts (log sd 0.6)": (Truth(prompt_skew=0.6), False),
    "launches and drift dominate (2 %, 3 %), prompts alike": (Truth(prompt_skew=0.05, launch=0.02, drift=0.03), False),
    "one board a study, boards alike": (Truth(board=0.0), True),
}
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"


def coverage(truth: Truth, n_seeds: int, studies: int, one_board: bool, chunk: int = 50) -> pd.DataFrame:
    """One row a study and configuration: whether both intervals cover, and their half-widths in %."""
    known = {(d, c): true_ratio(truth, d, c) for d in truth.drafters for c in truth.concurrencies}
    out = []
    for start in range(0, studies, chunk):
        rows = simulate(truth, n_seeds, studies=min(chunk, studies - start), seed=7919 * n_seeds + start,
                        one_board=one_board)  # fmt: skip
        made = make_pairs(sum_waves(rows))
        assert made.excluded.empty
        for study, pairs in with_wave_variance(made.pairs, rows).groupby("study"):
            table = with_intervals(pairs).assign(study=f"{study}-{start}")
            table["truth"] = [known[key] for key in zip(table["drafter"], table["concurrency"], strict=True)]
            out.append(table)
    result = pd.concat(out, ignore_index=True)
    for name in ("ratio", "alone"):
        low, high = result[f"{name}_low"], result[f"{name}_high"]
        result[f"{name}_covers"] = (low <= result["truth"]) & (result["truth"] <= high)
        result[f"{name}_half_percent"] = 50.0 * (high - low) / result["truth"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--write", type=Path, default=None)
    args = parser.parse_args()
    lines = [
        f"{args.studies} simulated studies a line; 12 configurations each (3 drafters, concurrency 1 to 64).",
        "",
        "| scenario | seeds | pooled interval covers | worst and best configuration | t interval alone covers "
        "| half-width pooled (median, %) | half-width alone (%) | degrees of freedom (median) |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for name, (truth, one_board) in SCENARIOS.items():
        for n_seeds in (3, 5, 10):
            start = time.perf_counter()
            got = coverage(truth, n_seeds, args.studies, one_board)
            each = got.groupby(["drafter", "concurrency"])["ratio_covers"].mean()
            se = float(np.std(got.groupby("study")["ratio_covers"].mean(), ddof=1) / np.sqrt(args.studies))
            lines.append(
                f"| {name} | {n_seeds} | {100 * got['ratio_covers'].mean():.1f} ± {100 * se:.1f} % "
                f"| {100 * each.min():.1f} % to {100 * each.max():.1f} % | {100 * got['alone_covers'].mean():.1f} % "
                f"| {got['ratio_half_percent'].median():.1f} | {got['alone_half_percent'].median():.1f} "
                f"| {got['df'].median():.0f} |"
            )
            print(lines[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    text = "\n".join(lines)
    if args.write is not None:
        page = args.write.read_text(encoding="utf-8")
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        args.write.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
