"""A Slurm of its own on this host: a controller and two nodes with stand-in boards, all below one folder.

Nothing outside the folder is written, no service is touched, and `stop` ends every process that was started.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NODES = {"h100n1": "h100", "h200n1": "h200"}
FOLDER_VARIABLE = "SPECJOULE_TEST_SLURM"
"""Environment variable that names the folder of a Slurm that runs already."""
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol")
CALL_S = 30.0


def missing_programs() -> list[str]:
    """Names of programs that are not installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(int(one.getsockname()[1]))
        return ports


@dataclass(frozen=True)
class Lane:
    """A node and the kind of board on it: tests on different lanes can run at the same time."""

    gpu: str
    node: str


LANES = (Lane("H100", "h100n1"), Lane("H200", "h200n1"))


@dataclass
class LocalSlurm:
    """The daemons and the environment in which Slurm's commands talk to them."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        return {**kept, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str, check: bool = True, timeout: float = CALL_S) -> str:
        """Run one of Slurm's commands, always under a time limit."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def start(self) -> None:
        self._write_configuration()
        munge = self.folder / "munge"
        munge.mkdir(mode=0o711)
        key = munge / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._spawn(
            "munged", "--foreground", "--force", f"--socket={munge / 'socket'}", f"--key-file={key}",
            f"--pid-file={munge / 'pid'}", f"--log-file={munge / 'log'}", f"--seed-file={munge / 'seed'}",
        )  # fmt: skip
        wait_until((munge / "socket").exists, 15, "munged's socket")
        self._spawn("slurmctld", "-D")
        for node in NODES:
            self._spawn("slurmd", "-D", "-N", node)
        wait_until(lambda: self.node_states() == dict.fromkeys(NODES, "idle"), 30, "both nodes to be idle")

    def stop(self) -> None:
        """End all jobs, then every daemon; whatever is left after ten seconds is killed."""
        with contextlib.suppress(Exception):
            self.call("scancel", "--full", "--user=root", check=False, timeout=10)
            wait_until(lambda: not self.jobs(), 15, "all jobs to end")
        for process in reversed(self.processes):
            process.terminate()
        deadline = time.monotonic() + 10
        for process in reversed(self.processes):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self._stepds():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def node_states(self) -> dict[str, str]:
        lines = self.call("sinfo", "--noheader", "-N", "--partition=gpu", "-o", "%N %T", check=False).split("\n")
        return {name: state.rstrip("*") for name, state in (line.split() for line in lines if line.strip())}

    def jobs(self, node: str | None = None) -> dict[str, tuple[str, str]]:
        """State and comment (`rule_...`) of jobs that are not over, by id; of one node: running there only."""
        where = ["-w", node] if node else []
        text = self.call("squeue", "--noheader", "-o", "%A|%T|%k", *where, check=False)
        rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
        return {row[0]: (row[1], row[2]) for row in rows}

    def jobs_below(self, folder: Path) -> list[str]:
        """Ids of jobs that were submitted from a folder below this one."""
        lines = self.call("squeue", "--noheader", "-o", "%A|%Z", check=False).splitlines()
        return [job for job, _, where in (line.partition("|") for line in lines) if Path(where).is_relative_to(folder)]

    def measuring(self, node: str) -> list[str]:
        """Ids of measuring jobs that run on the node."""
        return [
            i for i, (state, rule) in self.jobs(node).items() if state == "RUNNING" and rule.startswith("rule_measure")
        ]

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text(errors="replace")

    def _spawn(self, *command: str) -> None:
        out = (self.folder / f"{Path(command[0]).name}-{len(self.processes)}.out").open("wb")
        process = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out, start_new_session=True)
        self.processes.append(process)

    def _stepds(self) -> Iterator[int]:
        """Step daemons that belong to this folder's slurmd."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "environ").read_bytes()
                    name = (entry / "comm").read_text().strip()
                    if name == "slurmstepd" and str(self.folder).encode() in words:
                        yield int(entry.name)

    def _write_configuration(self) -> None:
        controller, *ports = free_ports(1 + len(NODES))
        here = self.folder
        for name in ("state", *(f"spool-{n}" for n in NODES)):
            (here / name).mkdir()
        gres, nodes = ["AutoDetect=off"], []
        for port, (node, kind) in zip(ports, NODES.items(), strict=True):
            board = here / f"{kind}-0"
            board.touch()
            gres.append(f"NodeName={node} Name=gpu Type={kind} File={board}")
            nodes.append(
                f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=16000 "
                f"Gres=gpu:{kind}:1 Feature={kind}"
            )
        # The executor's inner srun is started without SLURM_CONF; this one finds the test's own configuration again.
        (here / "bin").mkdir()
        srun = here / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={here}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)
        (here / "gres.conf").write_text("\n".join(gres) + "\n")
        (here / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        (here / "slurm.conf").write_text(
            f"""ClusterName=hut
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool-%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd-%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=200
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
ReturnToService=2
MinJobAge=300
{chr(10).join(nodes)}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10
"""
        )


def wait_until(met: object, seconds: float, what: str, poll_s: float = 0.2) -> None:
    """Poll `met()` until it is true. Raises TimeoutError naming what was waited for."""
    deadline = time.monotonic() + seconds
    while not met():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(poll_s)
