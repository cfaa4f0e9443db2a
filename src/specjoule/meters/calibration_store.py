"""Calibrations of boards on disk: what windows on a board use, and whether it still holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from specjoule.meters.base import BoardInfo, Calibration
from specjoule.meters.state import read_json, state_directory, write_json


@dataclass(frozen=True)
class AliasingPoint:
    """Counter against the expected mean of one square load."""

    period_ms: float
    duty: float
    relative_error: float
    """Against busy power in steps of a second; a load that heats less draws less in itself."""
    against_slowest: float
    """The same, relative to the slowest square load of this duty: what is left is aliasing."""


@dataclass(frozen=True)
class BoardCalibration:
    """All that a calibration found of one board."""

    uuid: str
    name: str
    driver: str | None
    date: str
    refresh_ns: int
    refresh_jitter: float
    """Half the range of the middle 95 % of intervals over their median."""
    dating_ns: int
    """Median width of the brackets in which refreshes were dated."""
    idle_w: float
    busy_w: float
    lag_ns: int
    lag_uncertainty_ns: int
    lag_on_ns: int
    lag_off_ns: int
    """Lag from switching on and off: a power that rises slowly looks late on, one that falls slowly early off."""
    n_steps: int
    aliasing: tuple[AliasingPoint, ...]
    smallest_generation_s: float
    smallest_decode_s: float

    def for_windows(self) -> Calibration:
        """Return the part that windows use."""
        return Calibration(
            lag_ns=self.lag_ns,
            lag_uncertainty_ns=self.lag_uncertainty_ns,
            refresh_ns=self.refresh_ns,
            idle_w=self.idle_w,
            calibrated=True,
            driver=self.driver,
            date=self.date,
        )


def calibration_path(uuid: str, directory: Path | None = None) -> Path:
    """Return where a board's calibration is kept."""
    return (directory or state_directory() / "calibrations") / f"{uuid}.json"


def save_calibration(found: BoardCalibration, directory: Path | None = None) -> Path:
    """Keep a calibration, in place of the board's last one."""
    path = calibration_path(found.uuid, directory)
    write_json(path, asdict(found))
    return path


def load_calibration(uuid: str, directory: Path | None = None) -> BoardCalibration | None:
    """Return a board's calibration; None where there is none that can be read."""
    content = read_json(calibration_path(uuid, directory))
    if content is None:
        return None
    try:
        points = tuple(AliasingPoint(**point) for point in content.pop("aliasing"))
        return BoardCalibration(aliasing=points, **content)
    except (KeyError, TypeError):
        return None  # from another version: to be measured again


def calibration_for(board: BoardInfo, directory: Path | None = None) -> tuple[Calibration, bool]:
    """Return what windows on a board use, and whether a calibration was set aside because the driver has changed."""
    found = None if board.uuid is None else load_calibration(board.uuid, directory)
    if found is None:
        return Calibration(), False
    if found.driver != board.driver:
        return Calibration(refresh_ns=found.refresh_ns, driver=found.driver, date=found.date), True
    return found.for_windows(), False
