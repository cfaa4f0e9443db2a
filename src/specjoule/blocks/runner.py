"""Measures one block: starts each launch once, measures what is missing or stale, keeps every finished cell at once.

The order of a segment is drawn in `blocks.block`; this module drives engine and meter through it and writes to the
store. Whatever ends it (Ctrl-C, kill -9, a crash), the next run goes on with the cells that are not in the store.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from specjoule.blocks.block import Block, Launch, plan_segment, with_partners
from specjoule.blocks.devices import Devices
from specjoule.blocks.host import HostFacts, host_facts, load_average
from specjoule.blocks.inherit import inherit
from specjoule.blocks.journal import CELL, CELL_START, ERROR, LAUNCH, PROOF, SEGMENT, SEGMENT_END, BlockState, summarise
from specjoule.blocks.launching import RunningLaunch, launch_spec, start_launch
from specjoule.blocks.lock import block_lock
from specjoule.blocks.store import BlockStore
from specjoule.blocks.todo import cell_parts, todo
from specjoule.blocks.unpack import unpack
from specjoule.blocks.warm_up import warm_up_prompts
from specjoule.blocks.waves import measure_waves
from specjoule.cells.cell import Cell
from specjoule.engines.base import Capacity, EngineBug, EngineInfeasible, EngineTransient
from specjoule.errors import MeterError, SpecJouleError
from specjoule.meters.base import BoardInfo
from specjoule.prompts.corpus import Prompt, draw, load_corpus
from specjoule.reasons import Reason, Status
from specjoule.study.catalogue import Drafter
from specjoule.study.model import Study
from specjoule.version import PROTOCOL_VERSION
from specjoule.windows.build import Context, outcome_row, wave_rows
from specjoule.windows.io import table_from_rows
from specjoule.windows.judging import judge_table
from specjoule.windows.schema import SCHEMA_VERSION
from specjoule.windows.validity import Verdict, attempt_outcome, judge, worth_another_attempt

log = logging.getLogger(__name__)

SHRINKABLE = frozenset({Reason.OOM_LOAD, Reason.OOM_CAPTURE})
"""A start that failed for memory may fit without its largest batch; any other refusal concerns every batch."""


class BlockFailed(SpecJouleError):
    """Some cells could not be measured; those that could are kept."""


@dataclass(frozen=True)
class Folders:
    """Where a study's files live."""

    raw: Path
    store: Path
    cache: Path
    logs: Path


@dataclass(frozen=True)
class Event:
    """Progress for whoever watches: a cell that is about to start or was finished."""

    cell: Cell
    role: str
    done: int
    total: int
    status: str | None = None
    validity: str | None = None


@dataclass
class _Segment:
    """State of the segment being measured."""

    study: Study
    block: Block
    store: BlockStore
    devices: Devices
    folders: Folders
    id: str
    board: BoardInfo
    host: HostFacts
    started_at: str
    order: dict[tuple[str, str], int]
    attempts: dict[str, int]
    total: int
    watch: Callable[[Event], None]
    should_stop: Callable[[], bool]
    pools: dict[str, list[Prompt]] = field(default_factory=dict)
    done: int = 0
    launches: int = 0
    failures: list[str] = field(default_factory=list)


def unfinished_cells(block: Block, store: BlockStore, state: BlockState) -> list[Cell]:
    """Return the cells that have no finished, readable attempt under their present hash and in a segment with plain."""
    wanted = todo(block, state)
    return [c for c in block.cells if c.path in wanted or not store.readable(c.hash)]


def _as_stored(block: Block, store: BlockStore, state: BlockState) -> BlockState:
    """Leave only those segments of each cell whose files are there: a pair whose plain file is lost is no pair."""
    present = {c.hash: {a.segment_id for a in store.readable_attempts(c.hash) if a.role == "cell"} for c in block.cells}
    segments = {digest: found & present.get(digest, found) for digest, found in state.segments_of.items()}
    return replace(state, segments_of=segments)


def measure_block(
    study: Study,
    block: Block,
    folders: Folders,
    open_block_devices: Callable[[], Devices],
    *,
    watch: Callable[[Event], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Measure what the block lacks and (re)build its raw files.

    `open_block_devices` is called only if something is to be measured. `should_stop` is asked between cells; when it
    says yes the segment ends cleanly and BlockFailed says that cells are left. Raises BlockFailed, BlockBusy,
    ConfigurationError, MeterError; KeyboardInterrupt passes through after engine and meter were stopped.
    """
    store = BlockStore(folders.store, study.name, block.id)
    with block_lock(store.directory / "lock"):
        unpack(store.directory)
        for cell_hash in store.adopt_orphans(block, study.file.validity):
            log.info("kept cell %s, which an interrupted run had stored", cell_hash)
        state = summarise(store.journal.events())
        if inherit(store, block, state.finished):
            state = summarise(store.journal.events())
        state = _as_stored(block, store, state)
        missing = unfinished_cells(block, store, state)
        failures: list[str] = []
        if missing:
            failures = _measure_segment(
                study, block, store, folders, open_block_devices,
                missing=missing, state=state, watch=watch, should_stop=should_stop,
            )  # fmt: skip
        for cell in block.cells:
            store.build_raw(cell, folders.raw / cell.path)
        left = unfinished_cells(block, store, _as_stored(block, store, summarise(store.journal.events())))
        if failures and not left:
            log.warning(
                "the closing plain was lost, the block's drift is unknown: %s", "; ".join(dict.fromkeys(failures))
            )
        if left:
            names = ", ".join(cell.path for cell in left[:3]) + (" ..." if len(left) > 3 else "")
            why = "; ".join(dict.fromkeys(failures)) or "stopped before the end"
            raise BlockFailed(
                f"block {block.id}: {len(left)} cells are not measured ({names}): {why}; run again to go on"
            )


def _measure_segment(
    study: Study,
    block: Block,
    store: BlockStore,
    folders: Folders,
    open_block_devices: Callable[[], Devices],
    *,
    missing: Sequence[Cell],
    state: BlockState,
    watch: Callable[[Event], None],
    should_stop: Callable[[], bool],
) -> list[str]:
    wanted = with_partners(block, missing)
    launches = plan_segment(block, wanted, state.segments, study.file.protocol.reference_cells)
    pools = {
        name: draw(load_corpus(Path(study.root) / study.corpora[name].path, name), block.seed)
        for name in {c.corpus for c in block.cells}
    }
    devices = open_block_devices()
    if devices.note:
        log.warning("%s", devices.note)
    board = devices.meter.start()
    begun_ns = devices.meter.clock.now_ns()
    segment = _Segment(
        study=study,
        block=block,
        store=store,
        devices=devices,
        folders=folders,
        id=f"{state.segments:03d}.{secrets.token_hex(4)}",
        board=board,
        host=host_facts(Path(study.root)),
        started_at=_utc_now(),
        order={(launch.role, cell.hash): i for i, (launch, cell) in enumerate(_steps(launches))},
        attempts=dict(state.attempts),
        total=sum(len(launch.cells) for launch in launches),
        watch=watch,
        should_stop=should_stop,
        pools=pools,
    )
    store.journal.append(
        SEGMENT,
        segment_id=segment.id,
        block_id=block.id,
        todo=segment.total,
        host=segment.host.host,
        boot_id=segment.host.boot_id,
        wall_offset_ns=segment.host.wall_offset_ns,
        gpu_uuid=board.uuid,
        gpu_name=board.name,
        driver=board.driver,
        meter=devices.meter.name,
        meter_note=devices.note,
        git_commit=segment.host.git_commit,
    )
    outcome = "interrupted"
    try:
        for launch in launches:
            if should_stop():
                outcome = "stopped"
                break
            _measure_launch(segment, launch)
        else:
            whole = segment.done >= segment.total  # told to stop within the last launch, it is not
            outcome = "failed" if segment.failures else "finished" if whole else "stopped"
    finally:
        devices.engine.stop()
        clock_s = (devices.meter.clock.now_ns() - begun_ns) / 1e9
        devices.meter.stop()
        store.journal.append(SEGMENT_END, segment_id=segment.id, outcome=outcome, clock_s=clock_s)
    return segment.failures


def _steps(launches: Iterable[Launch]) -> list[tuple[Launch, Cell]]:
    return [(launch, cell) for launch in launches for cell in launch.cells]


@dataclass
class _Queue:
    """Cells of one launch that still wait, and what already went wrong."""

    launch: Launch
    left: list[Cell]
    concurrencies: list[int]
    struck: dict[str, int] = field(default_factory=dict)
    failed_starts: int = 0


def _measure_launch(segment: _Segment, launch: Launch) -> None:
    """Measure the cells of one launch, on further launches where the engine or a batch gave way.

    Transient trouble ends the engine; the cell it struck is tried once more on a fresh launch and then failed, the
    others go on. A start that runs out of memory is tried again without its largest batch.
    """
    concurrencies = sorted(
        {c.concurrency for c in segment.block.cells if c.capture == launch.capture and _can_fill(segment, c)}
    )
    for cell in (c for c in launch.cells if not _can_fill(segment, c)):
        _record_infeasible(segment, launch, cell, _too_few_prompts(segment, cell))
    queue = _Queue(launch, [c for c in launch.cells if _can_fill(segment, c)], concurrencies)
    while queue.left and not segment.should_stop():
        running: RunningLaunch | None = None
        try:
            with segment.devices.locked_clock(segment.board.uuid, launch.locked_mhz):
                running = _start(segment, launch, tuple(queue.concurrencies))
                queue.failed_starts = 0
                while queue.left and not segment.should_stop():
                    _measure_cell(segment, launch, running, queue.left[0])
                    queue.left.pop(0)
                _prove(segment, launch, running)
        except EngineInfeasible as error:
            _infeasible(segment, queue, error, started=running is not None)
        except (EngineTransient, MeterError) as error:
            _transient(segment, queue, error, started=running is not None)
        except EngineBug as error:
            struck = queue.left[:1] if running is not None else queue.left[:]
            _drop(queue, struck)
            for cell in struck:
                _fail(segment, launch, cell, Reason.COUNTS_MISSING, str(error))
        finally:
            segment.devices.engine.stop()


def _can_fill(segment: _Segment, cell: Cell) -> bool:
    """Say whether the corpus fills one batch; where it does not, no engine is started, warmed or made to capture."""
    return len(segment.pools[cell.corpus]) >= cell.concurrency


def _too_few_prompts(segment: _Segment, cell: Cell) -> EngineInfeasible:
    size = len(segment.pools[cell.corpus])
    return EngineInfeasible(
        Reason.NOT_ENOUGH_PROMPTS,
        f"the corpus '{cell.corpus}' holds {size} prompts and one batch needs {cell.concurrency}",
        capacity_requests=size,
    )


def _prove(segment: _Segment, launch: Launch, running: RunningLaunch) -> None:
    """Let an engine that can show which graphs its passes run do so, after the launch's last cell."""
    prove = getattr(segment.devices.engine, "prove", None)
    if prove is None or launch.role != "cell" or segment.should_stop():
        return
    concurrency = max(c.concurrency for c in launch.cells)
    shown = prove(concurrency, warm_up_prompts(concurrency))
    if shown:
        segment.store.journal.append(PROOF, segment_id=segment.id, launch=running.number, graphs=_plain_json(shown))


def _infeasible(segment: _Segment, queue: _Queue, error: EngineInfeasible, *, started: bool) -> None:
    """Keep what cannot run as a result: the cell that struck, the largest batch, or the whole launch."""
    if started:
        struck = queue.left[:1]
    elif error.reason in SHRINKABLE and len({c.concurrency for c in queue.left}) > 1:
        largest = max(c.concurrency for c in queue.left)
        struck = [c for c in queue.left if c.concurrency == largest]
        queue.concurrencies = [n for n in queue.concurrencies if n < largest]
    else:
        struck = queue.left[:]
    _drop(queue, struck)
    for cell in struck:
        _record_infeasible(segment, queue.launch, cell, error)


def _transient(segment: _Segment, queue: _Queue, error: EngineTransient | MeterError, *, started: bool) -> None:
    """Journal the trouble; fail what it struck for the second time."""
    reason: Reason = getattr(error, "reason", Reason.NODE_TROUBLE)
    if isinstance(error, MeterError):
        segment.devices.meter.stop()
        segment.devices.meter.start()
    segment.store.journal.append(
        ERROR, segment_id=segment.id, drafter=queue.launch.drafter, reason=str(reason), message=str(error)
    )
    log.warning("%s: %s", queue.left[0].path, error)
    if started:
        cell = queue.left[0]
        queue.struck[cell.hash] = queue.struck.get(cell.hash, 0) + 1
        given_up = [cell] if queue.struck[cell.hash] > 1 else []
    else:
        queue.failed_starts += 1
        given_up = queue.left[:] if queue.failed_starts > 1 else []
    _drop(queue, given_up)
    for cell in given_up:
        _fail(segment, queue.launch, cell, reason, str(error))


def _drop(queue: _Queue, cells: Sequence[Cell]) -> None:
    gone = {c.hash for c in cells}
    queue.left = [c for c in queue.left if c.hash not in gone]


def _start(segment: _Segment, launch: Launch, concurrencies: tuple[int, ...]) -> RunningLaunch:
    study, block = segment.study, segment.block
    number = segment.launches
    segment.launches += 1
    log_path = segment.folders.logs / study.name / block.id / f"{segment.id}-l{number}-{launch.drafter}.log"
    spec = launch_spec(
        study,
        block,
        launch,
        concurrencies,
        board_uuid=segment.board.uuid,
        log_path=log_path,
        cache_dir=segment.folders.cache,
    )
    running = start_launch(segment.devices, spec, study.file.protocol, number)
    # A sampler that was restarted may have opened another board; rows say which one was read.
    segment.board = segment.devices.meter.start()
    segment.store.journal.append(
        LAUNCH,
        segment_id=segment.id,
        launch=number,
        role=launch.role,
        drafter=launch.drafter,
        capture=launch.capture,
        locked_mhz=launch.locked_mhz,
        instrumentation=launch.instrumentation,
        engine_version=running.capacity.engine_version,
        max_running_requests=running.capacity.max_running_requests,
        kv_tokens=running.capacity.kv_tokens,
        captured_batches=list(running.capacity.captured_batches),
        start_s=running.start_s,
        ready_s=running.ready_s,
        settled=running.settled,
        idle_power_w=running.idle_power_w,
        resolved=_plain_json(running.capacity.resolved),
        log=str(log_path),
        gpu_uuid=segment.board.uuid,
    )
    return running


def _measure_cell(segment: _Segment, launch: Launch, running: RunningLaunch, cell: Cell) -> None:
    for tried in range(2):
        verdicts = _one_attempt(segment, launch, running, cell, segment.pools[cell.corpus])
        # One automatic retry for trouble of the environment, none for content, none until a number pleases.
        if tried == 0 and not worth_another_attempt(verdicts):
            break
    segment.done += 1


def _one_attempt(
    segment: _Segment, launch: Launch, running: RunningLaunch, cell: Cell, pool: Sequence[Prompt]
) -> list[Verdict]:
    attempt = segment.attempts.get(cell.hash, 0) + 1
    segment.watch(Event(cell, launch.role, segment.done, segment.total))
    segment.store.journal.append(
        CELL_START, segment_id=segment.id, cell_hash=cell.hash, path=cell.path, role=launch.role, drafter=cell.drafter
    )
    clock = segment.devices.meter.clock
    begun_ns = clock.now_ns()
    context = _context(segment, launch, running, cell, attempt)
    rows: list[dict[str, Any]] = []
    for wave in measure_waves(
        segment.devices, running, cell, pool, segment.study.file.protocol, Path(segment.study.root)
    ):
        rows.extend(wave_rows(wave, context))
    table = table_from_rows(rows)
    verdicts = judge_table(table, segment.study.file.validity)
    seconds = (clock.now_ns() - begun_ns) / 1e9
    _keep(
        segment, launch, cell,
        rows=rows, table=table, verdicts=verdicts, attempt=attempt, number=running.number, seconds=seconds,
    )  # fmt: skip
    # Headline and retry stand on generation windows; a decode window that could not be cut costs no new measurement.
    return [v for row, v in zip(rows, verdicts, strict=True) if row["window"] == "generation"]


def _keep(
    segment: _Segment,
    launch: Launch,
    cell: Cell,
    *,
    rows: Sequence[dict[str, Any]],
    table: pa.Table,
    verdicts: Sequence[Verdict],
    attempt: int,
    number: int,
    seconds: float | None,
) -> None:
    """Store, journal, and copy to the raw file: in this order, so that a kill in between loses and repeats nothing."""
    stored = segment.store.name(cell.hash, segment.id, number, attempt, launch.role)
    segment.store.put(table, stored)
    outcome = attempt_outcome(rows, verdicts)
    segment.store.journal.append(
        CELL,
        segment_id=segment.id,
        cell_hash=cell.hash,
        path=cell.path,
        drafter=cell.drafter,
        launch=number,
        attempt=attempt,
        role=launch.role,
        parts=cell_parts(cell),
        seconds=seconds,
        windows_s=_windows_s(segment, rows),
        file=stored.path.name,
        **outcome,
    )
    segment.attempts[cell.hash] = attempt
    segment.store.build_raw(cell, segment.folders.raw / cell.path)
    segment.watch(Event(cell, launch.role, segment.done + 1, segment.total, outcome["status"], outcome["validity"]))


def _windows_s(segment: _Segment, rows: Sequence[dict[str, Any]]) -> float:
    """Time of the measured windows with the idle refreshes before and after, by which their edges are measured, s."""
    waves = [r for r in rows if r["window"] == "generation" and r.get("t_end_ns") is not None]
    refresh_ns = segment.devices.meter.calibration.refresh_ns or 100_000_000
    idle_ns = segment.study.file.protocol.idle_refreshes * refresh_ns
    ends = [max(r["t_end_ns"], int(r["refreshes"].columns["read_end_ns"].max(initial=0))) for r in waves]
    return float(sum(end - r["t_start_ns"] + idle_ns for end, r in zip(ends, waves, strict=True)) / 1e9)


def _record_infeasible(segment: _Segment, launch: Launch, cell: Cell, error: EngineInfeasible) -> None:
    """Keep a cell that cannot run as a result of its own: one row without energy, with reason and capacity."""
    attempt = segment.attempts.get(cell.hash, 0) + 1
    number = max(0, segment.launches - 1)
    context = replace(_context(segment, launch, None, cell, attempt), capacity_requests=error.capacity_requests)
    row = outcome_row(context, Status.INFEASIBLE, error.reason, str(error))
    verdict = judge(row, None, segment.study.file.validity)
    _keep(
        segment, launch, cell,
        rows=[row], table=table_from_rows([row]), verdicts=[verdict], attempt=attempt, number=number, seconds=None,
    )  # fmt: skip
    segment.done += 1


def _fail(segment: _Segment, launch: Launch, cell: Cell, reason: Reason, message: str) -> None:
    """Journal a cell without a result; it is measured again by the next run."""
    segment.store.journal.append(
        CELL,
        segment_id=segment.id,
        cell_hash=cell.hash,
        path=cell.path,
        drafter=cell.drafter,
        role=launch.role,
        attempt=segment.attempts.get(cell.hash, 0),
        status=str(Status.FAILED),
        reason=str(reason),
        message=message[:4000],
    )
    segment.failures.append(f"{cell.drafter} at concurrency {cell.concurrency}: {message}")
    segment.done += 1


def _context(segment: _Segment, launch: Launch, running: RunningLaunch | None, cell: Cell, attempt: int) -> Context:
    study = segment.study
    drafter: Drafter = study.drafters[cell.drafter]
    model = study.models[cell.model]
    board, host, meter = segment.board, segment.host, segment.devices.meter
    capacity = running.capacity if running else None
    checkpoint = drafter.checkpoints.get(cell.model)
    columns: dict[str, Any] = {
        "study": study.name,
        "site": study.file.site,
        "model": cell.model,
        "gpu": cell.gpu,
        "n_gpus": 1,
        "drafter": cell.drafter,
        "scheme": drafter.scheme,
        "draft_tokens": drafter.draft_tokens,
        "verify_width": drafter.verify_width,
        "concurrency": cell.concurrency,
        "corpus": cell.corpus,
        "language": study.corpora[cell.corpus].language,
        "context_tokens": cell.context_tokens,
        "seed": cell.seed,
        "replicate": cell.replicate,
        "waves": cell.waves,
        "capture": cell.capture,
        "locked_mhz": cell.locked_mhz,
        "instrumentation": cell.instrumentation,
        "weight_dtype": model.weight_dtype,
        "kv_dtype": model.kv_dtype,
        "sampling": study.file.protocol.sampling,
        "chat_template": _template_digest(capacity),
        "ignore_eos": study.file.protocol.ignore_eos,
        "max_new_tokens": cell.max_new_tokens,
        "ngram_state": study.file.protocol.ngram_state,
        "pool_digest": cell.pool_digest,
        "grid": ",".join(cell.grids),
        "cell_hash": cell.hash,
        "schema_version": SCHEMA_VERSION,
        "protocol_version": PROTOCOL_VERSION,
        "block_id": segment.block.id,
        "block_order": segment.order[(launch.role, cell.hash)],
        "segment_id": segment.id,
        "launch": running.number if running else max(0, segment.launches - 1),
        "role": launch.role,
        "attempt": attempt,
        "boot_id": host.boot_id,
        "git_commit": host.git_commit,
        "started_at": _utc_now(),
        "engine": study.file.engine.name,
        "engine_version": capacity.engine_version if capacity else (study.file.engine.version or "unknown"),
        "model_revision": capacity.model_revision if capacity else model.checkpoint.revision,
        "drafter_revision": capacity.drafter_revision if capacity else (checkpoint.revision if checkpoint else None),
        "wall_offset_ns": host.wall_offset_ns,
        "meter": meter.name,
        "assumed_w_per_core": board.assumed_w_per_core,
        "meter_lag_ms": meter.calibration.lag_ns / 1e6 if meter.calibration.calibrated else None,
        "idle_power_w": running.idle_power_w if running else None,
        "gpu_uuid": board.uuid,
        "gpu_name": board.name,
        "driver": board.driver,
        "power_limit_w": board.power_limit_w,
        "ecc": board.ecc,
        "host": host.host,
        "cpu_model": host.cpu_model,
        "numa_node": board.numa_node,
        "governor": host.governor,
        "load_average": load_average(),
    }
    return Context(
        columns=columns,
        board=board,
        calibration=meter.calibration,
        concurrency=cell.concurrency,
        capacity_requests=capacity.max_running_requests if capacity else None,
        validity=study.file.validity,
    )


def _template_digest(capacity: Capacity | None) -> str | None:
    """Digest of the chat template, which engines report among their own entries of the resolved settings."""
    own = capacity.resolved.get("specjoule", {}) if capacity else {}
    digest = own.get("chat_template")
    return None if digest is None else str(digest)


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain_json(value: Any) -> Any:
    """Settings as JSON can hold them; what it cannot is kept as text, never dropped."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(k): _plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain_json(v) for v in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
