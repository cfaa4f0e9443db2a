"""The `sglang` engine: the study's server, launched, measured, watched and ended by us."""

from specjoule.engines.sglang.engine import SglangEngine
from specjoule.engines.sglang.launch import build, plan_record

__all__ = ["SglangEngine", "build", "plan_record"]
