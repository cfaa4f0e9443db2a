from __future__ import annotations

import copy
import json
from pathlib import Path

from specjoule.engines.sglang.settings_diff import beyond_speculation, differences, kind_of

INFO = json.loads(Path(__file__).with_name("answers.json").read_text())["server_info"]


def test_a_launch_does_not_differ_from_itself_nor_by_its_ports() -> None:
    other = copy.deepcopy(INFO) | {"port": 1, "nccl_port": 2, "launch_command": "x"}
    assert differences(INFO, other) == ()


def test_differences_are_named_sorted_and_speculation_kept_apart() -> None:
    other = copy.deepcopy(INFO)
    other["speculative_algorithm"] = "EAGLE"
    other["speculative_num_draft_tokens"] = 4
    other["max_total_num_tokens"] = 11
    other["disable_overlap_schedule"] = True
    other["cuda_graph_config"]["decode"]["max_bs"] = 4
    other["log_level"] = "debug"
    found = beyond_speculation(INFO, other)
    assert [(d.field, d.kind) for d in found] == [
        ("cuda_graph_config.decode.max_bs", "scheduler"),
        ("disable_overlap_schedule", "scheduler"),
        ("max_total_num_tokens", "capacity"),
        ("log_level", "other"),
    ]
    assert found[2].record() == {
        "field": "max_total_num_tokens", "kind": "capacity", "plain": INFO["max_total_num_tokens"], "speculative": 11
    }  # fmt: skip
    assert {d.field for d in differences(INFO, other) if d.kind == "speculation"} == {
        "speculative_algorithm", "speculative_num_draft_tokens"
    }  # fmt: skip


def test_a_field_that_one_side_lacks_differs() -> None:
    other = {k: v for k, v in INFO.items() if k != "page_size"}
    assert [d.field for d in differences(INFO, other)] == ["page_size"]


def test_every_speculation_field_of_the_real_server_is_recognised() -> None:
    assert {k for k in INFO if "speculative" in k} == {
        k for k in INFO if kind_of(k) == "speculation" and "speculative" in k
    }
