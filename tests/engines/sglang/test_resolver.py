"""Every command is parsed and resolved by the real pinned SGLang, and the *resolved* arguments are asserted."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specjoule.engines.base import LaunchSpec
from specjoule.engines.sglang.launch import LaunchCommand, build, captured_batches
from specjoule.engines.sglang.ports import Ports
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import ROOT, STUBS

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]

RESOLVE = Path(__file__).with_name("resolve.py")
PORTS = Ports(30001, 30002)


def resolve_all(python: Path, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of the pinned resolver, in order."""
    done = subprocess.run(
        [python, RESOLVE],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(STUBS), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def as_command(command: LaunchCommand) -> dict[str, Any]:
    """Return what the resolver script takes; caches are left out, they are not its business."""
    own = {k: v for k, v in command.environment.items() if k == "SGLANG_RAGGED_VERIFY_MODE"}
    return {"flags": list(command.flags), "environment": own}


def disagreements(spec: LaunchSpec, command: LaunchCommand, answer: dict[str, Any]) -> list[str]:
    """Return every resolved argument that is not the one the launch asks for."""
    if "error" in answer:
        return [answer["error"].strip().splitlines()[-1]]
    resolved = answer["resolved"]
    wrong = [
        f"{key}: resolved {resolved[key]!r}, asked {value!r}"
        for key, value in command.expected.items()
        if resolved[key] != value
    ]
    decode = resolved["cuda_graph_config"]["decode"]
    if spec.capture and tuple(decode["bs"]) != captured_batches(spec):
        wrong.append(f"captured batches: resolved {decode['bs']}, asked {captured_batches(spec)}")
    if (decode["backend"] != "disabled") != spec.capture:
        wrong.append(f"decode graphs: resolved {decode['backend']}, capture asked {spec.capture}")
    if not spec.capture and resolved["cuda_graph_config"]["prefill"]["backend"] != "disabled":
        wrong.append("prefill graphs are on although capture is off")
    if resolved["disable_overlap_schedule"] and "disable_overlap_schedule" not in command.expected:
        wrong.append("the overlap scheduler was turned off")
    return wrong


@pytest.fixture(scope="module")
def answers(
    sglang_python: Path, stand_ins: dict[str, Path]
) -> dict[str, tuple[LaunchSpec, LaunchCommand, dict[str, Any]]]:
    """Return every case with its command and the resolver's answer, from one run of its interpreter."""
    cases = specs.cases(stand_ins)
    commands = {name: build(spec, PORTS) for name, spec in cases.items()}
    found = resolve_all(sglang_python, [as_command(c) for c in commands.values()])
    return {name: (cases[name], commands[name], answer) for name, answer in zip(cases, found, strict=True)}


@pytest.mark.parametrize("name", list(specs.cases({n: Path("/x") for n in specs.STAND_INS})))
def test_resolves_to_what_was_asked(
    answers: dict[str, tuple[LaunchSpec, LaunchCommand, dict[str, Any]]], name: str
) -> None:
    assert disagreements(*answers[name]) == []


def test_refusals_of_the_pinned_release(sglang_python: Path, stand_ins: dict[str, Path]) -> None:
    """Flags of other releases and unknown formats end in an error, which `outcomes` recognises in the server's log."""
    plain = build(specs.launch(specs.model(stand_ins["qwen3"]), specs.drafter("plain")), PORTS).flags
    bad = [
        [*plain, "--cuda-graph-max-bs", "8"],
        [*plain, "--speculative-ngram-max-match-window-size", "8"],
        [*plain, "--quantization", "df11"],
        [*plain, "--speculative-algorithm", "EAGEL"],
    ]
    for answer in resolve_all(sglang_python, [{"flags": f} for f in bad]):
        assert "error" in answer


FAMILIES = {
    "Qwen3": "qwen3",
    "Gemma 4": "gemma4",
    "Qwen3.6": "qwen3.6-hybrid",
    "GLM-4.7": "glm4-moe-lite",
    "JoyAI": "deepseek-v3",
}
"""Stand-in of each family of the paper study; a mixture of experts has one of its own where the dense one differs."""
EXPERTS = {"qwen3": "qwen3-moe", "qwen3.6-hybrid": "qwen3.6-hybrid-moe"}
DRAFTS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "dspark": "draft-dspark", "assistant": "draft-assistant"}


def on_stand_ins(spec: LaunchSpec, stand_ins: dict[str, Path]) -> LaunchSpec:
    """Return a launch of the study with its checkpoints replaced by stand-ins of the same architecture."""
    name = FAMILIES[spec.model.family]
    if spec.model.architecture.experts:
        name = EXPERTS.get(name, name)
    target = spec.model.checkpoint.model_copy(update={"path": str(stand_ins[name])})
    checkpoints = {
        model: own.model_copy(update={"path": str(stand_ins[DRAFTS[spec.drafter.scheme]])})
        for model, own in spec.drafter.checkpoints.items()
    }
    return replace(
        spec,
        model=spec.model.model_copy(update={"checkpoint": target}),
        drafter=spec.drafter.model_copy(update={"checkpoints": checkpoints}),
    )


def test_every_command_of_the_paper_study_resolves(sglang_python: Path, stand_ins: dict[str, Path]) -> None:
    from specjoule.engines.sglang.commands import planned_launches
    from specjoule.study.load import load_study

    launches = [on_stand_ins(spec, stand_ins) for spec in planned_launches(load_study(ROOT / "config" / "paper.yaml"))]
    assert len(launches) > 50
    commands = [build(spec, PORTS) for spec in launches]
    once = {json.dumps(as_command(c), sort_keys=True): as_command(c) for c in commands}
    resolved = dict(zip(once, resolve_all(sglang_python, list(once.values())), strict=True))
    answers = [resolved[json.dumps(as_command(c), sort_keys=True)] for c in commands]
    wrong = {
        f"{spec.model.name} {spec.gpu.name} {spec.drafter.name} capture={spec.capture}": found
        for spec, command, answer in zip(launches, commands, answers, strict=True)
        if (found := disagreements(spec, command, answer))
    }
    assert wrong == {}
