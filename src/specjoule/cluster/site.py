"""The site file: everything that differs between clusters, in one small file (`config/site.yaml`).

Nothing in it can change a number, so nothing of it enters a cell's hash; which boards a study asks for is the study's.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Entry, Name
from specjoule.study.load import nearest

SITE_FILE = Path("config/site.yaml")
SITE_VARIABLE = "SPECJOULE_SITE"
"""Environment variable that names another site file."""


class SiteGpu(Entry):
    """How one kind of board is asked for; what is null is taken from the site."""

    partition: str | None = None
    gres: str | None = None
    """As in `sbatch --gres`, for example `gpu:h100:1`."""
    constraint: str | None = None
    account: str | None = None
    qos: str | None = None
    cpus: int | None = Field(default=None, ge=1)
    memory_gb: float | None = Field(default=None, gt=0)


class Limits(Entry):
    """What the queue allows."""

    hours: float = Field(default=24.0, gt=0)
    """Longest job the partition takes."""
    runtime_factor: float = Field(default=2.0, ge=1)
    """A job asks for this many times its block's forecast, at most `hours`."""
    spare_minutes: float = Field(default=20.0, ge=0)
    """Asked for on top: waiting for file systems, a slow first server start."""
    stop_minutes: float = Field(default=6.0, ge=0)
    """So long before its limit a block ends cleanly after the cell it is measuring, and goes back to the queue."""
    submitted: int = Field(default=40, ge=1)
    """Most measuring jobs in the queue at once."""


class Clocks(Entry):
    """How a job is allowed to lock the board's clock; used for blocks with locked clocks only."""

    constraint: str | None = None
    """Node feature that grants the permission, for example `hwperf`."""
    flags: tuple[str, ...] = ()
    """Further sbatch flags. `{mhz}` stands for the clock; then a study splits its blocks by `locked_mhz`."""
    lock: tuple[str, ...] = ()
    """The site's own command (program, then its words) where only an administrator's tool may set clocks. It finds the
    board in SPECJOULE_BOARD and the clock in SPECJOULE_MHZ. Empty: the driver is asked."""
    unlock: tuple[str, ...] = ()
    """The command that undoes `lock`; it finds the board in SPECJOULE_BOARD."""

    @model_validator(mode="after")
    def _both(self) -> Clocks:
        if bool(self.lock) != bool(self.unlock):
            missing = "unlock" if self.lock else "lock"
            raise ValueError(f"'{missing}' is missing: clocks that a tool sets must be given back by one")
        return self


class Hooks(Entry):
    """Shell commands around a block, on its node."""

    before: str | None = None
    """Run in the block's shell before it: `module load cuda`, environment variables."""
    after: str | None = None


class SiteFile(Entry):
    """The site file as written."""

    site: Name | None = None
    """Name in the `site` column of every row; null: the study's own."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    exclusive: bool = True
    """A node for one block alone: host energy and quiet neighbours."""
    cpu_binding: bool = True
    """Only cores beside the board, one thread a core."""
    requeue: bool = True
    cpus: int = Field(default=8, ge=1)
    memory_gb: float | None = Field(default=None, gt=0)
    gpus: dict[Name, SiteGpu] = Field(default_factory=dict)
    limits: Limits = Limits()
    scratch: str | None = None
    """Folder for the store of finished cells, seen by all nodes; `$NAME` is replaced. Null: the study's own."""
    clocks: Clocks = Clocks()
    hooks: Hooks = Hooks()
    boards: dict[Name, tuple[str, ...]] = Field(default_factory=dict)
    """Workstations only: UUIDs of this host's boards by kind. Each is lent to one block at a time."""
    accepted_licenses: tuple[str, ...] = ()
    """Licences of checkpoints, by the hub's names, that were read and agreed to here; open ones need no agreement."""
    extra: tuple[str, ...] = ()
    """Further sbatch flags for every measuring job."""

    def gpu(self, name: str) -> SiteGpu:
        """Return how that kind of board is asked for."""
        return self.gpus.get(name, SiteGpu())

    @property
    def store(self) -> Path | None:
        """Folder of the store on this site, if it names one."""
        return Path(os.path.expandvars(self.scratch)).expanduser() if self.scratch else None


def site_path(root: Path) -> Path:
    """Return the site file that holds for a project: the one in the environment, else the project's own."""
    named = os.environ.get(SITE_VARIABLE)
    return Path(named) if named else root / SITE_FILE


def load_site(path: Path) -> SiteFile:
    """Read a site file; a missing one is the default. Raises ConfigurationError naming file and key."""
    try:
        return _load(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return SiteFile()


@lru_cache(maxsize=4)
def _load(path: Path, stamp: int) -> SiteFile:
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return SiteFile.model_validate(raw)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}); check the file and its permissions") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML ({error})") from error
    except ValidationError as error:
        raise ConfigurationError(f"{path}: " + "; ".join(_sentence(dict(item)) for item in error.errors())) from error


def _sentence(item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "(file)"
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key; {nearest(str(item['loc'][-1]), _KEYS)}"
    return f"{key}: {item['msg']} (found {item['input']!r:.60})"


_KEYS = sorted({k for model in (SiteFile, SiteGpu, Limits, Clocks, Hooks) for k in model.model_fields})
