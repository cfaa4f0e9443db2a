"""Reading a block's record: what its readers rely on is checked once, so that a damaged one is one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specjoule.errors import StoreError
from specjoule.files import read_json

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Reference(_Part):
    corpus: str
    concurrency: int
    ratio: Number


class _Drift(_Part):
    capture: bool
    locked_mhz: int | None
    drift: Number | None
    references: list[_Reference]


class _Difference(_Part):
    setting: str
    kind: str
    plain: Any
    value: Any


class _Compared(_Part):
    drafter: str
    against: str
    differences: list[_Difference]


class _Segment(_Part):
    segment_id: str
    outcome: str
    time: Number | None = None
    ended: Number | None = None
    drift: list[_Drift]
    settings_compared: list[_Compared] = []


class _Record(_Part):
    block_id: str
    cells: dict[str, str]
    segments: list[_Segment]


def read_record(path: Path, remedy: str) -> dict[str, Any]:
    """Read a block's record; `remedy` says what to do where that fails. Raises StoreError with what is wrong."""
    found = read_json(path, remedy)
    if not isinstance(found, dict):
        raise StoreError(f"{path}: is not a block's record (it is no JSON object); {remedy}")
    try:
        _Record.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"{path}: is not a block's record ({where}: {first['msg']}); {remedy}") from error
    return found
