from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from specjoule.blocks.record import settings_compared
from specjoule.engines.settings_diff import beyond_speculation, differences, kind_of
from specjoule.pairs.outcomes import settings_differences

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
    assert (found[2].plain, found[2].speculative) == (INFO["max_total_num_tokens"], 11)
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


def launched(number: int, drafter: str, capture: bool = True, **changed: Any) -> dict[str, Any]:
    return {
        "launch": number, "drafter": drafter, "capture": capture, "locked_mhz": None, "resolved": {**INFO, **changed}
    }  # fmt: skip


def test_the_record_compares_both_sides_of_every_pair_and_the_table_counts() -> None:
    launches = [
        launched(0, "plain", port=1),
        launched(1, "plain", capture=False, page_size=64),
        launched(2, "ngram-4", port=2, speculative_algorithm="NGRAM", page_size=16),
        launched(3, "plain-matched", page_size=16),
        launched(4, "ngram-4", capture=False, speculative_algorithm="NGRAM", page_size=64),
        launched(5, "plain", port=5),
    ]
    compared = settings_compared(launches)
    assert [(c["launch"], c["against"], [d["setting"] for d in c["differences"]]) for c in compared] == [
        (2, "plain", ["page_size"]), (2, "plain-matched", []), (3, "plain", ["page_size"]), (4, "plain", []),
    ]  # fmt: skip
    records = [{"block_id": name, "segments": [{"settings_compared": compared}]} for name in ("a", "b")]
    table = settings_differences([*records, {"block_id": "old", "segments": [{}]}])
    rows = table.set_index(["drafter", "against", "kind"])
    assert rows.loc[("ngram-4", "plain", "scheduler"), ["setting", "plain", "value", "blocks"]].tolist() == [
        "page_size", str(INFO["page_size"]), "16", 2
    ]  # fmt: skip
    assert rows.loc[("ngram-4", "plain-matched", "none"), "blocks"] == 2
    assert settings_differences([]).empty
