"""Is the reference engine as fast as `generate`, and how much of a round is its own bookkeeping?

Plain decoding at batch 1 and 8 against transformers' `generate`: same weights, dtype, thread, prompts and tokens, both
warm, repeats interleaved in one process, so that a busy machine slows both. Writes docs/reference-speed.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from reference_common import KEPT_LAYERS, ROOT, Generate, command, drafter, launch, machine

from specjoule.engines.base import Batch
from specjoule.engines.reference import ReferenceEngine
from specjoule.prompts.corpus import load_corpus


def _ratios(times: dict[str, list[float]]) -> str:
    ratios = sorted(theirs / ours for theirs, ours in zip(times["generate"], times["ours"], strict=True))
    best = min(times["generate"]) / min(times["ours"])
    return f"{best:.3f}; {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    prompts = load_corpus(ROOT / "prompts/code.jsonl")
    generate, engine = Generate(), ReferenceEngine()
    engine.start(launch(drafter("plain")))
    lines = [
        "# Speed of the reference engine",
        "",
        f"Made by `{command()}` on {machine()}.",
        "",
        "Plain decoding against transformers' `generate`: same weights (float32), thread, prompts (code) and tokens; "
        f"warm; {options.repeats} interleaved repeats of {options.tokens} tokens a request, prefill included. A ratio "
        "is `generate`'s time over ours: that of the shortest run of each side (the least disturbed), then the median "
        "over neighbouring runs, smallest to largest. Above 1 the reference engine is faster. Load of the machine when "
        f"this began: {os.getloadavg()[0]:.1f}; others disturb wall time most, CPU time less.",
        "",
        "| batch | `generate` tok/s | reference tok/s | ratio of wall time | ratio of CPU time | same tokens |",
        "|---|---|---|---|---|---|",
    ]
    for batch in (1, 8):
        chosen = tuple(prompts[:batch])
        generate(prompts[-batch:], 4)
        engine.warm_up(batch, prompts[-batch:], 4)
        wall: dict[str, list[float]] = {"generate": [], "ours": []}
        cpu: dict[str, list[float]] = {"generate": [], "ours": []}
        for repeat in range(options.repeats):
            for side in (("generate", "ours"), ("ours", "generate"))[repeat % 2]:
                begun, begun_cpu = time.perf_counter(), time.process_time()
                if side == "ours":
                    wave = engine.run(Batch(chosen, options.tokens, ignore_eos=True))
                else:
                    texts = generate(chosen, options.tokens)
                wall[side].append(time.perf_counter() - begun)
                cpu[side].append(time.process_time() - begun_cpu)
        same = sum(r.output_token_ids == text for r, text in zip(wave.requests, texts, strict=True))
        tokens = batch * options.tokens
        lines.append(
            f"| {batch} | {tokens / statistics.median(wall['generate']):.1f} | "
            f"{tokens / statistics.median(wall['ours']):.1f} | {_ratios(wall)} | {_ratios(cpu)} | {same}/{batch} |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        "Bookkeeping: everything in a round outside the forward passes of target and drafting model (proposals by "
        "n-gram, acceptance, cuts, rollback, compaction, stamps), at batch 8.",
        "",
        "| drafter | width | ms a round | bookkeeping ms | share |",
        "|---|---|---|---|---|",
    ]
    for entry in (
        drafter("plain"),
        drafter("ngram", 4),
        drafter("ngram", 8),
        drafter("ngram", 16),
        drafter("layer-skip", 4, kept_layers=KEPT_LAYERS),
    ):
        engine.start(launch(entry))
        engine.warm_up(8, prompts[-8:], 4)
        wave = engine.run(Batch(tuple(prompts[:8]), 24, ignore_eos=True))
        times = wave.notes
        # Matching n-grams is bookkeeping; a drafting model's passes are not.
        passes = times["verify_ns"] + (times["draft_ns"] if entry.scheme == "layer-skip" else 0)
        own = times["rounds_ns"] - passes
        lines.append(
            f"| {entry.scheme} | {entry.verify_width} | {times['rounds_ns'] / wave.steps / 1e6:.1f} | "
            f"{own / wave.steps / 1e6:.2f} | {100 * own / times['rounds_ns']:.2f} % |"
        )
        print(lines[-1], flush=True)
    if not options.dry:
        (ROOT / "docs/reference-speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
