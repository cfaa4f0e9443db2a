from __future__ import annotations

import hashlib
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from specjoule.figures.style import house_style, look, mark_provenance
from specjoule.tables.registry import build
from tests.pairs.frames import study

SCHEMES = ["plain", "ngram", "layer-skip", "mtp", "assistant", "eagle3", "dflash", "dspark", "draft-model"]


def digests(paths: list[Path]) -> list[str]:
    return [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths]


@pytest.mark.parametrize("name", ["figure_saving", "figure_break_even"])
def test_same_data_same_bytes(tmp_path: Path, name: str) -> None:
    rows = study(concurrencies=[1, 4])
    first = digests(build(name, rows, tmp_path / "a", "test"))
    second = digests(build(name, rows, tmp_path / "b", "test"))
    assert first == second


@pytest.mark.parametrize(
    ("meters", "across"),
    [(["simulated"], "simulated, not measured"), (["estimate"], "estimated from CPU time, not measured"),
     (["nvml"], None), (["nvml", "simulated"], "simulated, not measured")],
)  # fmt: skip
def test_what_is_not_measured_is_printed_across(meters: list[str], across: str | None) -> None:
    import matplotlib.pyplot as plt

    with house_style():
        fig, _ = plt.subplots()
        mark_provenance(fig, meters)
        found = [t for t in fig.texts if t.get_gid() == "provenance"]
        assert [t.get_text() for t in found] == ([across] if across else [])
        assert any("Energy: " in t.get_text() for t in fig.texts)
        plt.close(fig)


def test_looks_are_fixed_and_told_apart_in_grey() -> None:
    assert look("dflash", 16) == look("dflash", 16)
    assert look("ngram", 4) != look("ngram", 16)
    looks = {s: look(s, 7) for s in SCHEMES}
    for a, b in combinations(SCHEMES, 2):
        assert looks[a].color != looks[b].color
        same_marker = looks[a].marker == looks[b].marker
        grey = abs(sum(to_rgb(looks[a].color)) - sum(to_rgb(looks[b].color)))
        assert not same_marker or grey > 0.3, (a, b)
