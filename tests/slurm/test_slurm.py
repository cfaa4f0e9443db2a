"""The workflow on a real Slurm: sbatch, squeue, scancel, two nodes with stand-in boards. Run by `make test-slurm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .bench import Bench
from .daemons import Lane, LocalSlurm, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def one(lane: Lane) -> dict[str, list[str]]:
    """A study of one block, on the lane's board."""
    return {"gpus": [lane.gpu]}


def once_each(bench: Bench, cells: int) -> bool:
    """Every cell measured exactly once."""
    return sorted(bench.finished().values()) == [1] * cells


def mine(slurm: LocalSlurm, bench: Bench) -> list[str]:
    """Rules of the jobs that this bench has in the queue."""
    listing = slurm.call("squeue", "--noheader", "-o", "%k|%Z", check=False)
    return [line.split("|")[0] for line in listing.splitlines() if line.endswith(f"|{bench.folder}")]


def drafters_once(bench: Bench) -> bool:
    """No drafter's cell measured twice; plain may be, since pairs are made within a segment."""
    return all(n == 1 for path, n in bench.finished().items() if "/plain/" not in path)


def test_fresh_study_edit_and_status(slurm: LocalSlurm, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm)
    assert bench.run(eager=False) == 0, bench.tail()  # the literal `snakemake --profile slurm`, from the project's root
    assert once_each(bench, 12)
    assert bench.outcomes() == ["finished", "finished"]
    assert {e["host"] for e in bench.events() if e["event"] == "segment"}
    assert (bench.folder / "paper_figures/paper/manifest.json").is_file()
    assert sorted((bench.folder / "hooks.txt").read_text().splitlines()) == ["after set"] * 2 + ["before"] * 2
    # Each board was asked for by its type, each node for one block alone.
    jobs = slurm.call("scontrol", "show", "job").split("JobId=")
    mine = [j for j in jobs if "rule_measure" in j and str(bench.folder) in j]
    assert sorted("h100" in j for j in mine) == [False, True]
    assert all("TresPerNode=gres:gpu:h" in j and "OverSubscribe=NO" in j for j in mine), mine
    # Again: nothing to do.
    before = len(bench.events())
    assert bench.run() == 0
    assert len(bench.events()) == before
    # One drafter edited: its cells and their plain partners are measured, in a new segment; nothing else.
    drafters = bench.folder / "config/drafters.yaml"
    text = drafters.read_text()
    start = text.index("  ngram-4:")
    end = text.index("max_ngram: 3", start)
    drafters.write_text(text[:end] + "max_ngram: 2" + text[end + len("max_ngram: 3") :])
    assert bench.run("--quiet") == 0, bench.tail()
    again = bench.finished()
    assert {p.split("/")[3]: n for p, n in again.items()} == {"plain": 2, "ngram-4": 2, "ngram-16": 1}
    assert bench.segments() == 4
    # status from another terminal, from journals alone
    words = "from specjoule.workflow import open_project as o; from specjoule.blocks.status import study_status as s;"
    words += "import json, pathlib; print(json.dumps(s(o(pathlib.Path('config/paper.yaml'))).to_dict()))"
    out = subprocess.run(
        [sys.executable, "-c", words], cwd=bench.folder, capture_output=True, text=True, timeout=60, check=True
    )
    status = json.loads(out.stdout)
    assert (status["counts"]["done"], status["blocks_finished"], status["eta_s"]) == (12, 2, None)


def test_a_failing_job_is_finished_by_a_plain_rerun(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), fail={"ngram-16/c4": "bug"})
    assert bench.run("raw", "--retries", "0") == 1
    assert sum(bench.finished().values()) == 5
    bench.write_study(**one(lane))
    assert bench.run("raw") == 0, bench.tail()
    assert bench.finished()[f"paper/smollm2-135m-instruct/{lane.gpu}/ngram-16/code/c4/s1-eager.parquet"] == 1
    assert drafters_once(bench)
    assert bench.raw_files() == 6


def test_a_cancelled_job_keeps_its_cells(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    main = bench.main("raw", "--retries", "0")
    bench.wait_for_cells(3)
    slurm.call("scancel", *slurm.measuring(lane.node))
    assert main.wait(200) == 1
    assert bench.outcomes()[-1] in ("interrupted", "stopped"), bench.tail()  # engine and meter were stopped
    kept = sum(bench.finished().values())
    assert 3 <= kept < 6
    assert bench.run("raw") == 0, bench.tail()
    assert drafters_once(bench)
    assert bench.raw_files() == 6


def test_a_warning_signal_ends_cleanly_and_requeues(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    main = bench.main("raw")
    bench.wait_for_cells(2)
    (job,) = slurm.measuring(lane.node)
    slurm.call("scancel", "--signal=USR1", job)  # what Slurm sends before the time limit
    wait_until(lambda: bench.outcomes()[:1] == ["stopped"], 30, f"a clean stop\n{bench.tail()}")
    assert main.wait(200) == 0, bench.tail()  # the same job came back and finished; nobody ran anything again
    assert bench.outcomes() == ["stopped", "finished"]
    assert drafters_once(bench)
    assert bench.submissions() == 1


def test_time_limit(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    """Limit of two minutes, the block takes longer than the first of them: it stops before, goes back, and goes on."""
    limits = {"hours": 2 / 60, "spare_minutes": 5, "stop_minutes": 0.9, "submitted": 4}
    bench = Bench.make(tmp_path / "p", slurm, {"limits": limits}, **one(lane), seconds_per_wave=4.5)
    assert bench.run("raw", seconds=280) == 0, bench.tail()
    assert bench.outcomes()[0] == "stopped", bench.outcomes()
    assert bench.segments() >= 2 and len(bench.finished()) == 6
    assert drafters_once(bench)
    assert bench.submissions() == 1
    assert "Time limit exhausted" not in slurm.log()


def test_preempted_by_a_more_urgent_job(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    main = bench.main("raw")
    bench.wait_for_cells(2)
    urgent = ["-p", "urgent", "-w", lane.node, "--exclusive", "-t", "5", "-o", "/dev/null", "--wrap", "sleep 3"]
    slurm.call("sbatch", *urgent)
    assert main.wait(200) == 0, bench.tail()
    assert len(bench.outcomes()) >= 1 and bench.outcomes()[-1] == "finished"
    assert bench.segments() == 2  # the preempted segment and the one after it
    assert drafters_once(bench)


def test_a_killed_main_process(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    main = bench.main("raw")
    bench.wait_for_cells(1)
    os.killpg(main.pid, signal.SIGKILL)
    main.wait(10)
    assert len(slurm.measuring(lane.node)) == 1  # the job lives on
    assert bench.run("raw") == 0, bench.tail()  # plain rerun, at once: its job waits for the one in the queue
    assert once_each(bench, 6)
    assert bench.segments() == 1


def test_two_main_processes_at_once(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    first = bench.main("raw")
    bench.wait_for_cells(1)
    second = bench.main("raw")
    assert (first.wait(200), second.wait(200)) == (0, 0), bench.tail()
    assert once_each(bench, 6)


def test_a_node_goes_down(slurm: LocalSlurm, lane: Lane, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path / "p", slurm, **one(lane), seconds_per_wave=0.5)
    main = bench.main("raw")
    bench.wait_for_cells(2)
    slurm.call("scontrol", "update", f"nodename={lane.node}", "state=down", "reason=test")
    time.sleep(2)
    # It may be back by itself already: its daemon registers again.
    slurm.call("scontrol", "update", f"nodename={lane.node}", "state=resume", check=False)
    assert main.wait(200) == 0, bench.tail()
    assert bench.outcomes()[-1] == "finished"
    assert drafters_once(bench)
    assert bench.raw_files() == 6


def test_submission_order_and_the_sites_limit(slurm: LocalSlurm, tmp_path: Path) -> None:
    """One job in the queue at a time: the first seeds of both boards come before the second seeds."""
    limits = {"hours": 0.5, "stop_minutes": 1, "submitted": 1}
    bench = Bench.make(
        tmp_path / "p", slurm, {"limits": limits}, seeds=[1, 2], drafters=["plain", "ngram-4"], concurrency=[4]
    )
    main = bench.main("raw")
    most = 0
    while main.poll() is None:
        most = max(most, sum(rule.startswith("rule_measure") for rule in mine(slurm, bench)))
        time.sleep(0.3)
    assert main.returncode == 0, bench.tail()
    assert most == 1
    segments = sorted((e for e in bench.events() if e["event"] == "segment"), key=lambda e: e["time"])
    assert [e["block_id"].rsplit("-", 3)[-2] for e in segments] == ["s1", "s1", "s2", "s2"]
    assert {e["block_id"].rsplit("-", 3)[-3] for e in segments[:2]} == {"H100", "H200"}
