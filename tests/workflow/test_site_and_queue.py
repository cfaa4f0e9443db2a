"""The site file, what a block asks of the queue, deadlines, lending boards; everything of the cluster without Slurm."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from specjoule.blocks.block import Block
from specjoule.blocks.lock import BlockBusy, block_lock
from specjoule.cluster.boards import candidates, lent_board
from specjoule.cluster.queue import earlier_jobs, parse_duration, seconds_left
from specjoule.cluster.requests import extra_flags, light_resources, measure_resources, runtime_minutes
from specjoule.cluster.site import SiteFile, load_site
from specjoule.cluster.stopping import ASKED, LIMIT, Stopper
from specjoule.errors import ConfigurationError
from specjoule.workflow import open_project

REPO = Path(__file__).resolve().parents[2]


def paper_block(gpu: str, clocks: bool) -> tuple[object, Block]:
    project = open_project(REPO / "config/paper.yaml")
    blocks = [b for b in project.blocks if b.gpu == gpu and any(c.locked_mhz for c in b.cells) is clocks]
    return project.study, blocks[0]


@pytest.mark.parametrize("name", ["site.yaml", "sites/one-partition.yaml", "sites/partition-per-board.yaml"])
def test_shipped_site_files_are_valid(name: str) -> None:
    site = load_site(REPO / "config" / name)
    assert site.exclusive is (name != "sites/one-partition.yaml")
    assert site.cpu_binding
    assert {"H100", "H200"} <= set(site.gpus)


def test_a_missing_site_file_is_the_default(tmp_path: Path) -> None:
    assert load_site(tmp_path / "site.yaml") == SiteFile()


@pytest.mark.parametrize(
    ("text", "words"),
    [("acount: x", "did you mean 'account'"), ("limits: {hours: 0}", "limits.hours"), ("a: [", "not valid YAML")],
)
def test_a_wrong_site_file_is_refused_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load_site(tmp_path / "site.yaml")


def test_what_a_block_asks_for() -> None:
    study, block = paper_block("H200", clocks=True)
    site = load_site(REPO / "config/sites/partition-per-board.yaml")
    wanted = measure_resources(study, block, site)  # type: ignore[arg-type]
    assert wanted["slurm_partition"] == "h200-long" and wanted["slurm_account"] == "ab0124"
    assert (wanted["gres"], wanted["qos"], wanted["constraint"]) == ("gpu:1", "long", "hwperf")
    assert wanted["cpus_per_task"] == 32 and "mem_mb" not in wanted
    flags = extra_flags(block, site, ("17", "18"))
    for flag in ("--exclusive", "--gres-flags=enforce-binding", "--signal=USR1@600", "--mail-type=NONE"):
        assert flag in flags
    assert "--dependency=afterany:17:18" in flags
    assert "slurm_partition" not in light_resources(SiteFile())


def test_a_jobs_limit_is_far_above_its_forecast_and_below_the_queues() -> None:
    from specjoule.blocks.estimate import block_seconds

    project = open_project(REPO / "config/paper.yaml")
    for block in project.blocks:
        minutes = runtime_minutes(project.study, block, SiteFile())
        assert minutes <= 24 * 60
        assert block_seconds(project.study, block.cells) / 60 < 0.6 * minutes


def test_one_clock_a_job_needs_blocks_split_by_clock() -> None:
    _, block = paper_block("H200", clocks=True)
    site = SiteFile.model_validate({"clocks": {"flags": ["--gpu-freq={mhz}"]}})
    with pytest.raises(ConfigurationError, match="locked_mhz"):
        extra_flags(block, site)
    _, plain = paper_block("H100", clocks=False)
    assert "gpu-freq" not in extra_flags(plain, site)


@pytest.mark.parametrize("clocks", [{"lock": ["a"]}, {"unlock": ["a"]}])
def test_a_tool_that_locks_clocks_needs_one_that_unlocks(clocks: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="must be given back"):
        SiteFile.model_validate({"clocks": clocks})


def test_scratch_holds_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG", "/big")
    assert SiteFile(scratch="$BIG/store").store == Path("/big/store")
    assert SiteFile().store is None


def test_earlier_jobs_of_the_same_block_and_folder() -> None:
    listing = "7|rule_measure_a|/x\n8|rule_measure_a|/y\n9|rule_measure_b|/x\n7|rule_measure_a|/x\nnonsense\n"
    assert earlier_jobs("measure_a", Path("/x"), listing) == ("7",)
    assert earlier_jobs("measure_c", Path("/x"), listing) == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1:30", 90), ("2:00:00", 7200), ("1-02", 93600), ("1-00:00:30", 86430), ("UNLIMITED", None), ("INVALID", None)],
)
def test_slurms_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_time_left() -> None:
    assert seconds_left({"SLURM_JOB_END_TIME": "1100"}, 1000) == 100
    assert seconds_left({"SLURM_JOB_ID": "5"}, 0, lambda command: "10:00\n") == 600
    assert seconds_left({"SLURM_JOB_ID": "5"}, 0, lambda command: None) is None
    assert seconds_left({}, 0) is None


def test_stopping() -> None:
    assert not Stopper(None, 60)()
    near = Stopper(time.time() + 30, 60)
    assert near() and near.reason == LIMIT
    asked = Stopper(time.time() + 1000, 60)
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    try:
        asked.listen()
        assert not asked()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked() and asked.reason == ASKED
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)  # the second one interrupts nothing
        time.sleep(0.01)
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_board_is_lent_to_one_block_at_a_time(tmp_path: Path) -> None:
    with lent_board(("a", "b"), tmp_path) as first, lent_board(("a", "b"), tmp_path) as second:
        assert (first, second) == ("a", "b")
        with pytest.raises(BlockBusy, match="a, b"), lent_board(("a", "b"), tmp_path, lambda: True):
            pass
    with lent_board(("a", "b"), tmp_path) as again:
        assert again == "a"
    with lent_board((), tmp_path) as none:
        assert none is None


def test_which_boards_may_be_lent() -> None:
    named = {"H100": ("GPU-1", "GPU-2")}
    assert candidates("H100", "cuda", named, {}) == ("GPU-1", "GPU-2")
    assert candidates("H100", "cuda", named, {"SLURM_JOB_ID": "3"}) == ()
    assert candidates("cpu", "cpu", {}, {}) == ("cpu",)
    assert candidates("H200", "cuda", named, {}) == ("any-board",)  # unnamed: one block at a time
    assert candidates("H200", "cuda", named, {"CUDA_VISIBLE_DEVICES": "1"}) == ("1",)


def test_a_requeued_job_breaks_the_lock_of_its_own_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with block_lock(tmp_path / "lock"):
        with pytest.raises(BlockBusy), block_lock(tmp_path / "lock"):
            pass
        text = (tmp_path / "lock").read_text()
    (tmp_path / "lock").write_text(text.replace('"host": "', '"host": "another-'))
    with pytest.raises(BlockBusy), block_lock(tmp_path / "lock"):
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with block_lock(tmp_path / "lock"):
        pass
