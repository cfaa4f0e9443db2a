"""What the workflow's scripts do with files that are missing, torn or in the way: one sentence, exit code 1."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from specjoule.cli.jobs import collect_main, measure_main
from specjoule.errors import StoreError
from specjoule.files import write_text
from specjoule.workflow import Project


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; run snakemake, which"),
        ("{", r"cannot be read (Expecting"),
        ("\udcff", "cannot be read"),
        ("{}", "is not a block's record (block_id: Field required); run snakemake, which"),
        ("[]", "is not a block's record"),
    ],
)
def test_collect_names_a_record_that_cannot_be_read(
    project: Project, capsys: Any, content: str | None, message: str
) -> None:
    block = project.blocks[0].id
    record = project.record(block)
    if content is not None:
        record.parent.mkdir(parents=True)
        record.write_bytes(content.encode(errors="surrogateescape"))
    assert collect_main(["--block", block, "--output", str(project.rows(block))]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {record}: ") and message in said


def test_collect_refuses_a_raw_file_of_another_cell(project: Project, capsys: Any) -> None:
    block = project.blocks[0]
    assert measure_main(["--block", block.id]) == 0
    mine, other = block.cells[0], block.cells[1]
    at = project.raw_file(mine)
    shutil.copy(project.raw_file(other), at)
    collecting = ["--block", block.id, "--output", str(project.rows(block.id))]
    capsys.readouterr()
    assert collect_main(collecting) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith(f"error: {at}: ") and mine.hash in said and other.hash in said and "remove the file" in said
    assert not project.rows(block.id).exists()
    at.unlink()
    assert measure_main(["--block", block.id]) == 0
    assert collect_main(collecting) == 0


@pytest.mark.parametrize("name", ["store", "raw", "blocks"])
def test_a_file_in_a_folders_place_is_one_sentence(project: Project, capsys: Any, name: str) -> None:
    Path("results").mkdir()
    (Path("results") / name).write_text("no folder")
    assert measure_main(["--block", project.blocks[0].id]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"error: results/{name}/tiny/") and "cannot be" in said


def test_a_writer_that_cannot_even_clean_up_says_why_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("no folder")
    with pytest.raises(StoreError, match=r"cannot be written \(.*\); nothing was changed"):
        write_text(tmp_path / "folder" / "file", "text")
