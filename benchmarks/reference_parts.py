"""Two choices of the reference engine on a CPU, measured by themselves: attention's form and the output projection.

Shapes of the embedded model, one thread, the alternatives in turn in one process. Writes docs/reference-parts.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from reference_common import ROOT, command, machine

from specjoule.engines.reference.attention import FOLDED_QUERIES, folded, folding_pays, grouped
from specjoule.engines.reference.projection import OneDnnProjection

HEADS, KV_HEADS, SIZE, HIDDEN, VOCABULARY = 9, 3, 64, 576, 49152
TURNING = 12
"""Layers that take turns, so that none finds its keys where the last pass left them."""
WEIGHTS = 3_300_000
"""Weights of one layer, read between two attentions."""


def attention_us(n: int, q: int, before: int, repeats: int) -> dict[str, float]:
    """Return the median time of each form for n requests of q new positions after `before`."""
    visible = before + q
    query = torch.randn(n, q, HEADS, SIZE).transpose(1, 2)
    stores = [torch.randn(2, n, KV_HEADS, visible + 16, SIZE).narrow(3, 0, visible) for _ in range(TURNING)]
    beyond = torch.arange(visible) > torch.arange(before, visible)[:, None]
    mask = torch.zeros(n, 1, q, visible).masked_fill_(beyond, -torch.inf)
    weights = torch.randn(WEIGHTS)

    def spent(form: Callable[..., torch.Tensor]) -> float:
        total = 0.0
        for key, value in stores:
            weights.sum()
            begun = time.perf_counter()
            form(query, key, value, mask)
            total += time.perf_counter() - begun
        return 1e6 * total / TURNING

    return _in_turn({"folded": lambda: spent(folded), "grouped": lambda: spent(grouped)}, repeats)


def projection_us(rows: int, layer: torch.nn.Linear, packed: OneDnnProjection, repeats: int) -> dict[str, float]:
    """Return the median time of the product of [rows, hidden] by PyTorch's dense layer and by oneDNN."""
    hidden = torch.randn(1, rows, HIDDEN)

    def spent(product: torch.nn.Module) -> float:
        begun = time.perf_counter()
        product(hidden)
        return 1e6 * (time.perf_counter() - begun)

    return _in_turn({"dense": lambda: spent(layer), "oneDNN": lambda: spent(packed)}, repeats)


def _in_turn(alternatives: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for name, measure in alternatives.items():
                times[name].append(measure())
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first turn warms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Parts of the reference engine on a CPU",
        "",
        f"Made by `{command()}` on {machine()}; medians of {options.repeats} turns.",
        "",
        "## Attention",
        "",
        f"One layer: {HEADS} query heads, {KV_HEADS} key-value heads of {SIZE}; keys and values out of the nearest "
        f"caches, as the weights of other layers leave them. The engine folds for up to {FOLDED_QUERIES} new positions "
        "of a request, except for one position of one request.",
        "",
        "| requests | tokens before | new positions | folded µs | grouped µs | grouped / folded | engine |",
        "|---|---|---|---|---|---|---|",
    ]
    for n in (1, 4, 8):
        for before, q in ((117, 1), (117, 2), (117, 4), (117, 8), (117, 16), (490, 1), (490, 4), (490, 16), (0, 256)):
            found = attention_us(n, q, before, options.repeats)
            lines.append(
                f"| {n} | {before} | {q} | {found['folded']:.0f} | {found['grouped']:.0f} | "
                f"{found['grouped'] / found['folded']:.3f} | {'folded' if folding_pays(n, q) else 'grouped'} |"
            )
            print(lines[-1], flush=True)
    layer = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    packed = OneDnnProjection(layer)
    lines += [
        "",
        "## Output projection",
        "",
        f"[rows, {HIDDEN}] onto {VOCABULARY} tokens in float32; rows are requests times verified positions. The engine "
        "uses oneDNN.",
        "",
        "| rows | dense µs | oneDNN µs | dense / oneDNN |",
        "|---|---|---|---|",
    ]
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        found = projection_us(rows, layer, packed, options.repeats)
        lines.append(
            f"| {rows} | {found['dense']:.0f} | {found['oneDNN']:.0f} | {found['dense'] / found['oneDNN']:.2f} |"
        )
        print(lines[-1], flush=True)
    (ROOT / "docs/reference-parts.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
