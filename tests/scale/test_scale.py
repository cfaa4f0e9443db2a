"""Growth of `snakemake -n` with the number of cells, on a small size; the full one is `benchmarks/scale_dag.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scale_dag import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def test_time_and_memory_grow_with_the_cells_not_with_their_square() -> None:
    """Per-cell lists in a rule's params made both quadratic once: four times the cells took sixteen times as much."""
    small = {m.state: m for m in measure(900, ("fresh", "done", "edit"), blocks=6)}
    large = {m.state: m for m in measure(3600, ("fresh", "done", "edit"), blocks=6)}
    for state, big in large.items():
        little = small[state]
        factor = big.cells / little.cells
        # CPU time: what others run on the machine does not count. Start-up (about 1.5 s, 100 MB) is in both.
        assert big.cpu_s < little.cpu_s * factor * 1.5, (state, little, big)
        assert big.peak_mb < little.peak_mb + 0.1 * (big.cells - little.cells), (state, little, big)


def test_metadata_of_a_finished_study_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake writes one record an output: it must hold a digest, not the block's cells."""
    from scale_dag import finish, write_study

    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, 900, blocks=6)
    cells = finish(tmp_path)
    sizes = [p.stat().st_size for p in (tmp_path / ".snakemake/metadata").rglob("*") if p.is_file()]
    assert len(sizes) >= cells
    assert sum(sizes) / len(sizes) < 4000
