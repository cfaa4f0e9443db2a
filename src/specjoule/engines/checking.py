"""One way to refuse what a study or a parameter file says of an engine: the first fault, by its key."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specjoule.errors import ConfigurationError

T = TypeVar("T", bound=BaseModel)


def checked(model: type[T], raw: Any, where: str) -> T:
    """Return `raw` as `model`; `where` goes before the key. Raises ConfigurationError naming what is wrong."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            message = f"unknown key; valid: {', '.join(model.model_fields)}"
        raise ConfigurationError(f"{(where + key).rstrip('. ')}: {message}") from error
