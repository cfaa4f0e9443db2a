"""Stand-in for torchvision: SGLang imports it at start, text models never call it."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

__version__ = "0.0.0"


class _Anything(type):
    """A class whose every attribute is a name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Stub(types.ModuleType):
    """A module whose every attribute is a class that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


for _name in (
    "io",
    "ops",
    "models",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
):
    _module = _Stub(f"torchvision.{_name}")
    _module.__spec__ = importlib.machinery.ModuleSpec(f"torchvision.{_name}", None, is_package=True)
    sys.modules[f"torchvision.{_name}"] = _module

transforms = sys.modules["torchvision.transforms"]
io = sys.modules["torchvision.io"]
ops = sys.modules["torchvision.ops"]
