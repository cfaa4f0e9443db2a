"""The store of a block: finished cells keyed by hash, segment and attempt; written once, never changed.

    {store}/{study}/{block}/journal.jsonl
    {store}/{study}/{block}/cells/{cell hash}/{segment}-l{launch}-a{attempt}-{role}.parquet

The raw file that the workflow knows is a copy that holds all attempts of the cell's present hash, rebuilt from here:
when a job fails, Snakemake deletes the outputs, never the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, Journal
from specjoule.blocks.todo import cell_parts
from specjoule.cells.cell import Cell
from specjoule.errors import StoreError
from specjoule.files import write_atomically
from specjoule.study.model import ValidityConfig
from specjoule.windows.io import read_window_table, write_window_table
from specjoule.windows.validity import attempt_outcome, judge_rows

Stamp = tuple[Path, int, int]
"""A file's path, size and time of its last change of any kind, ns: another content has another one."""


@dataclass(frozen=True)
class StoredAttempt:
    """One finished attempt of a cell, by the parts of its file name."""

    cell_hash: str
    segment_id: str
    launch: int
    attempt: int
    role: str
    path: Path


class BlockStore:
    """Files of one block below the store's root."""

    def __init__(self, root: Path, study: str, block_id: str) -> None:
        self.directory = root / study / block_id
        self.journal = Journal(self.directory / "journal.jsonl")
        self._built: dict[Path, tuple[tuple[Stamp, ...], Stamp]] = {}
        """Raw files made here: what they were made from, and what they were then."""
        self._whole: set[Stamp] = set()
        """Files found whole, by size and time: a block asks three times, and each look parses a hundred columns."""

    @cached_property
    def _paths(self) -> dict[str, set[str]]:
        """Paths under which attempts were finished before this run, by cell hash."""
        found: dict[str, set[str]] = {}
        for event in self.journal.events():
            if event["event"] == CELL and event.get("path") is not None:
                found.setdefault(event["cell_hash"], set()).add(event["path"])
        return found

    def put(self, table: pa.Table, attempt: StoredAttempt) -> Path:
        """Write one attempt's rows; on return they are on disk under their final name."""
        write_window_table(table, attempt.path)
        self._whole.add(_stamp(attempt.path))
        return attempt.path

    def name(self, cell_hash: str, segment_id: str, launch: int, attempt: int, role: str) -> StoredAttempt:
        """Return the attempt with the path it is kept at."""
        file = f"{segment_id}-l{launch}-a{attempt}-{role}.parquet"
        return StoredAttempt(cell_hash, segment_id, launch, attempt, role, self.directory / "cells" / cell_hash / file)

    def attempts(self, cell_hash: str) -> list[StoredAttempt]:
        """Return the stored attempts of a cell, oldest first; unfinished temporary files are not among them."""
        folder = self.directory / "cells" / cell_hash
        found = [_parsed(cell_hash, path) for path in folder.glob("[!.]*.parquet")] if folder.is_dir() else []
        return sorted((a for a in found if a is not None), key=lambda a: (a.attempt, a.launch))

    def adopt_orphans(self, block: Block, rules: ValidityConfig) -> list[str]:
        """Journal the attempts that were stored but not journalled because the runner was killed in between.

        Returns their cell hashes; each is judged as the runner would have judged it. A file that cannot be read is
        set aside (renamed), so that its cell is measured again and the damaged file can still be looked at.
        """
        # Cells of one launch share file names: only folder and name together tell an attempt.
        known = {(e["cell_hash"], e.get("file")) for e in self.journal.events() if e["event"] == CELL}
        adopted = []
        cells_by_hash = {cell.hash: cell for cell in block.cells}
        cells = self.directory / "cells"
        for folder in sorted(cells.iterdir()) if cells.is_dir() else []:
            for stored in self.attempts(folder.name):
                if (stored.cell_hash, stored.path.name) in known:
                    continue
                try:
                    rows = read_window_table(stored.path).to_pylist()
                except StoreError:
                    set_aside(stored.path)
                    continue
                cell = cells_by_hash.get(stored.cell_hash)
                outcome = attempt_outcome(rows, judge_rows(rows, [row["requests"] for row in rows], rules))
                self.journal.append(
                    CELL,
                    cell_hash=stored.cell_hash,
                    segment_id=stored.segment_id,
                    launch=stored.launch,
                    attempt=stored.attempt,
                    role=stored.role,
                    drafter=rows[0]["drafter"],
                    path=cell.path if cell else None,
                    parts=cell_parts(cell) if cell else None,
                    seconds=None,
                    **outcome,
                    file=stored.path.name,
                    adopted=True,
                )
                adopted.append(stored.cell_hash)
        return adopted

    def readable(self, cell_hash: str) -> bool:
        """Say whether the cell has at least one readable attempt of role `cell`; damaged files are set aside."""
        return any(stored.role == "cell" for stored in self.readable_attempts(cell_hash))

    def readable_attempts(self, cell_hash: str) -> list[StoredAttempt]:
        """Return the attempts whose files are whole; damaged ones are set aside."""
        good = []
        for stored in self.attempts(cell_hash):
            try:
                seen = _stamp(stored.path)
                if seen not in self._whole:
                    pq.read_metadata(stored.path)
                    self._whole.add(seen)
            except (OSError, pa.ArrowException):
                set_aside(stored.path)
                continue
            good.append(stored)
        return good

    def build_raw(self, cell: Cell, output: Path) -> bool:
        """(Re)build the raw file at `output` from all attempts of the cell; returns False if there are none.

        A file that already holds exactly these attempts is left alone, so that its time does not change. Names are no
        part of a cell's hash: attempts of a drafter or corpus that was renamed since go by the present name.
        """
        attempts = self.attempts(cell.hash)
        if not attempts:
            return False
        sources = tuple(_stamp(a.path) for a in attempts)
        if output.is_file() and self._built.get(output) == (sources, _stamp(output)):
            return True
        renamed = not self._paths.get(cell.hash, set()) <= {cell.path}
        if len(attempts) == 1 and not renamed:
            _copy_if_different(attempts[0].path, output)
        else:
            table = pa.concat_tables([read_window_table(a.path) for a in attempts])
            if renamed:
                table = _named(table, {"drafter": cell.drafter, "corpus": cell.corpus})
            if not _holds(output, table):
                write_window_table(table, output)
        self._built[output] = (sources, _stamp(output))
        return True


def _named(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    for column, name in names.items():
        at = table.schema.get_field_index(column)
        table = table.set_column(at, table.schema.field(at), pa.array([name] * len(table), pa.string()))
    return table


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return path, stat.st_size, stat.st_ctime_ns


def _copy_if_different(source: Path, output: Path) -> None:
    data = source.read_bytes()
    if not (output.is_file() and output.stat().st_size == len(data) and output.read_bytes() == data):
        write_atomically(output, lambda temporary: temporary.write_bytes(data))


def _holds(output: Path, table: pa.Table) -> bool:
    """Say whether the file holds exactly this table; a damaged one or one of another version does not."""
    try:
        return output.exists() and bool(read_window_table(output).equals(table))
    except StoreError:
        return False


def set_aside(path: Path) -> None:
    """Rename a damaged file so that it is kept but never read again."""
    path.replace(path.with_name(f"{path.name}.damaged"))


def _parsed(cell_hash: str, path: Path) -> StoredAttempt | None:
    parts = path.stem.rsplit("-", 3)
    if len(parts) != 4 or not parts[1].startswith("l") or not parts[2].startswith("a"):
        return None
    try:
        return StoredAttempt(cell_hash, parts[0], int(parts[1][1:]), int(parts[2][1:]), parts[3], path)
    except ValueError:
        return None
