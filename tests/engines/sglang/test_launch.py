"""From a launch to a command: pure, without SGLang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specjoule.engines.sglang.environment import child_environment, dropped_variables, refuse_simulation
from specjoule.engines.sglang.launch import build, captured_batches, plan_record
from specjoule.engines.sglang.matching import matched_flags, matched_settings
from specjoule.engines.sglang.ports import HeldPorts, Ports, is_free
from specjoule.engines.sglang.settings import parse_settings
from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Checkpoint, DraftCheckpoint
from tests.engines.sglang import specs

PORTS = Ports(30001, 30002)


def words(command: tuple[str, ...], flag: str) -> list[str]:
    """Return the words after `flag` up to the next flag; empty if it is not there."""
    if flag not in command:
        return []
    rest = command[command.index(flag) + 1 :]
    stop = next((i for i, w in enumerate(rest) if w.startswith("--")), len(rest))
    return list(rest[:stop])


def flags_of(how: object, **more: object) -> tuple[str, ...]:
    return build(specs.launch(specs.model("/m"), how, **more), PORTS).flags  # type: ignore[arg-type]


def test_plain_command_says_everything_that_would_otherwise_be_drawn_or_guessed() -> None:
    command = build(specs.launch(specs.model("/m"), specs.drafter("plain")), PORTS)
    assert command.argv[:4] == ("sglang", "serve", "--model-type", "llm")
    for flag, value in {
        "--random-seed": ["3"],
        "--port": ["30001"],
        "--nccl-port": ["30002"],
        "--max-running-requests": ["16"],
        "--cuda-graph-bs-decode": ["1", "4", "16"],
        "--dtype": ["bfloat16"],
        "--kv-cache-dtype": ["bfloat16"],
        "--attention-backend": ["fa3"],
        "--sampling-defaults": ["openai"],
        "--decode-log-interval": ["1"],
        "--host": ["127.0.0.1"],
    }.items():
        assert words(command.flags, flag) == value, flag
    assert "--disable-radix-cache" in command.flags
    assert not any("speculative" in f for f in command.flags)
    assert command.environment["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert command.environment["HF_HUB_OFFLINE"] == "1"
    assert command.environment["TRITON_CACHE_DIR"].startswith(str(Path("/tmp/specjoule-tests/cache/sglang-0.5.23")))


def test_program_lies_beside_the_interpreter() -> None:
    command = build(
        specs.launch(specs.model("/m"), specs.drafter("plain"), settings={"interpreter": "/env/bin/python"}), PORTS
    )
    assert command.argv[:2] == ("/env/bin/sglang", "serve")


def test_capture_off_disables_both_phases_and_captures_nothing() -> None:
    spec = specs.launch(specs.model("/m"), specs.drafter("plain"), capture=False)
    flags = build(spec, PORTS).flags
    assert words(flags, "--cuda-graph-backend-decode") == ["disabled"]
    assert words(flags, "--cuda-graph-backend-prefill") == ["disabled"]
    assert "--cuda-graph-bs-decode" not in flags
    assert captured_batches(spec) == ()


def test_width_counts_verified_positions() -> None:
    assert words(flags_of(specs.drafter("ngram", 16)), "--speculative-num-draft-tokens") == ["16"]
    assert words(flags_of(specs.drafter("eagle3", 4, "/d")), "--speculative-num-steps") == ["3"]
    assert words(flags_of(specs.drafter("dflash", 16, "/d")), "--speculative-dflash-block-size") == ["16"]
    assert words(flags_of(specs.drafter("dspark", 7, "/d")), "--speculative-dspark-block-size") == ["6"]


def test_dspark_gamma_must_verify_the_width_that_is_written_down() -> None:
    with pytest.raises(ConfigurationError, match="gamma 7 verifies 8 positions, but verify_width is 7"):
        flags_of(specs.drafter("dspark", 7, "/d", gamma=7))
    assert words(flags_of(specs.drafter("dspark", 8, "/d", gamma=7)), "--speculative-dspark-block-size") == ["7"]


def test_dspark_confidence_schedule_is_environment_and_tables() -> None:
    how = specs.drafter("dspark", 7, "/d", ragged_verify="compact", sps_table="/t/sps.json", sts_table="/t/sts.json")
    command = build(specs.launch(specs.model("/m"), how), PORTS)
    assert command.environment["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
    assert words(command.flags, "--speculative-dspark-sps-table-path") == ["/t/sps.json"]
    static = build(specs.launch(specs.model("/m"), specs.drafter("dspark", 7, "/d")), PORTS)
    assert static.environment["SGLANG_RAGGED_VERIFY_MODE"] == "static"
    with pytest.raises(ConfigurationError, match="no effect under ragged_verify static"):
        flags_of(specs.drafter("dspark", 7, "/d", sps_table="/t/sps.json"))


def test_mtp_without_a_draft_checkpoint_drafts_with_the_target() -> None:
    assert words(flags_of(specs.drafter("mtp", 4)), "--speculative-draft-model-path") == ["/m"]


@pytest.mark.parametrize("scheme", ["eagle3", "assistant", "dflash", "dspark", "draft-model"])
def test_trained_drafters_need_their_checkpoint(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="no draft checkpoint for 'tiny'"):
        flags_of(specs.drafter(scheme, 4))


def test_scheme_and_settings_sglang_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match="no scheme 'layer-skip'"):
        flags_of(specs.drafter("layer-skip", 4, kept_layers=2))
    with pytest.raises(ConfigurationError, match="has no setting 'trie'"):
        flags_of(specs.drafter("ngram", 4, trie=3))
    flags_of(specs.drafter("ngram", 4, max_ngram=3, min_ngram=1))


def test_hub_names_need_a_revision_and_become_prefetched_folders() -> None:
    target = specs.model("org/model").model_copy(update={"checkpoint": Checkpoint(path="org/model", revision="abc")})
    how = specs.drafter("eagle3", 4, "/d").model_copy(
        update={"checkpoints": {"tiny": DraftCheckpoint(path="org/draft", revision="def")}}
    )
    flags = build(specs.launch(target, how), PORTS).flags
    assert words(flags, "--revision") == ["abc"]
    assert words(flags, "--speculative-draft-model-revision") == ["def"]
    flags = build(specs.launch(target, how, settings={"checkpoints": "/scratch/models"}), PORTS).flags
    assert words(flags, "--model-path") == ["/scratch/models/org--model/abc"]
    assert words(flags, "--speculative-draft-model-path") == ["/scratch/models/org--draft/def"]
    loose = target.model_copy(update={"checkpoint": Checkpoint(path="org/model")})
    with pytest.raises(ConfigurationError, match="pin its 'revision'"):
        build(specs.launch(loose, specs.drafter("plain")), PORTS)


def test_formats_are_a_factor_and_unknown_ones_are_named() -> None:
    plain = specs.drafter("plain")
    assert words(flags_of(plain, weight_dtype="fp8"), "--quantization") == ["fp8"]
    assert words(flags_of(plain, kv_dtype="fp8"), "--kv-cache-dtype") == ["fp8_e4m3"]
    assert words(flags_of(plain, weight_dtype="df11"), "--quantization") == ["df11"]
    own = {"weight_formats": {"zip": ["--dtype", "bfloat16", "--load-format", "zip"]}}
    assert words(flags_of(plain, weight_dtype="zip", settings=own), "--load-format") == ["zip"]
    with pytest.raises(ConfigurationError, match="no such format"):
        flags_of(plain, weight_dtype="zip")
    with pytest.raises(ConfigurationError, match="needs weight_dtype 'float16'"):
        flags_of(plain, kv_dtype="float16")


def test_matched_baseline_takes_the_speculative_sides_scheduler_settings() -> None:
    resolved = {
        "max_total_tokens": None,
        "max_total_num_tokens": 12345,
        "max_running_requests": 8,
        "disable_overlap_schedule": True,
        "enable_mixed_chunk": False,
        "chunked_prefill_size": 2048,
        "attention_backend": "triton",
        "speculative_algorithm": "EAGLE",
    }
    chosen = matched_settings(resolved)
    spec = specs.launch(specs.model("/m"), specs.drafter("plain-matched"))
    command = build(spec, PORTS, chosen)
    assert words(command.flags, "--max-total-tokens") == ["12345"]
    assert words(command.flags, "--max-running-requests") == ["8"]
    assert words(command.flags, "--attention-backend") == ["triton"]
    assert command.flags.count("--max-running-requests") == 1
    assert command.flags.count("--attention-backend") == 1
    assert "--disable-overlap-schedule" in command.flags
    assert "--enable-mixed-chunk" not in command.flags
    assert command.expected["max_running_requests"] == 8
    assert words(command.flags, "--cuda-graph-bs-decode") == ["1", "4", "16"]
    with pytest.raises(ConfigurationError, match="cannot be set by a flag"):
        matched_flags({"nonsense": 1})


def test_minimal_instrumentation_leaves_out_what_the_study_adds() -> None:
    flags = flags_of(specs.drafter("plain"), settings={"instrumentation": "minimal"})
    assert not {"--enable-metrics", "--decode-log-interval", "--load-snapshot-publish-interval"} & set(flags)
    assert "--incremental-streaming-output" in flags


def test_settings_are_checked_by_name() -> None:
    with pytest.raises(ConfigurationError, match="unknown key 'mem_fraction'"):
        parse_settings({"mem_fraction": 0.8})
    with pytest.raises(ConfigurationError, match="none of study, minimal"):
        parse_settings({"instrumentation": "some"})
    with pytest.raises(ConfigurationError, match="unknown key 'backend'"):
        parse_settings({"models": {"tiny": {"backend": "fa3"}}})


def test_a_models_own_settings_win() -> None:
    own = {
        "models": {
            "tiny": {"attention_backend": "triton", "flags": ["--page-size", "16"], "speculative_flags": ["--x"]}
        }
    }
    flags = flags_of(specs.drafter("plain"), settings=own)
    assert words(flags, "--attention-backend") == ["triton"]
    assert words(flags, "--page-size") == ["16"]
    assert "--x" not in flags
    assert "--x" in flags_of(specs.drafter("ngram", 4), settings=own)


def test_gemma_takes_the_backend_its_resolver_accepts() -> None:
    spec = specs.launch(specs.model("/m", family="Gemma 4"), specs.drafter("plain"))
    assert words(build(spec, PORTS).flags, "--attention-backend") == ["triton"]


def test_simulated_acceptance_is_refused_unless_asked_for() -> None:
    settings = {"environment": {"SGLANG_SIMULATE_ACC_LEN": "3"}}
    with pytest.raises(ConfigurationError, match="SGLANG_SIMULATE_ACC_LEN"):
        flags_of(specs.drafter("ngram", 4), settings=settings)
    flags_of(specs.drafter("ngram", 4), settings={**settings, "simulated_acceptance": True})
    with pytest.raises(ConfigurationError, match="the shell"):
        refuse_simulation({"SGLANG_SIMULATE_ACC_LEN": "3"}, False, "the shell")


def test_the_callers_server_variables_do_not_reach_the_server() -> None:
    inherited = {"PATH": "/bin", "SGLANG_IS_IN_CI": "1", "SGL_OLD": "1", "no_proxy": "host"}
    child = child_environment(inherited, {"SGLANG_CACHE_DIR": "/c"})
    assert child["PATH"] == "/bin"
    assert child["no_proxy"] == "host,127.0.0.1,localhost"
    assert {k for k in child if k.startswith(("SGLANG_", "SGL_"))} == {"SGLANG_CACHE_DIR"}
    assert dropped_variables(inherited) == ("SGLANG_IS_IN_CI", "SGL_OLD")


def test_container_by_digest_binds_checkpoints_and_passes_the_environment() -> None:
    digest = "sha256:" + "0" * 64
    settings = {"container": {"image": "lmsysorg/sglang", "digest": digest, "binds": ["/data"]}}
    command = build(specs.launch(specs.model("/m"), specs.drafter("eagle3", 4, "/d"), settings=settings), PORTS)
    line = " ".join(command.argv)
    assert command.argv[:2] == ("apptainer", "exec")
    assert f"docker://lmsysorg/sglang@{digest} sglang serve --model-path /m" in line
    for folder in ("/m", "/d", "/data", "/tmp/specjoule-tests/cache"):
        assert f"--bind {folder}" in line
    assert "--env HF_HUB_OFFLINE=1" in line
    with pytest.raises(ConfigurationError, match="sha256:<64"):
        flags_of(specs.drafter("plain"), settings={"container": {"image": "x", "digest": "latest"}})


def test_plan_record_is_plain_json_data() -> None:
    spec = specs.launch(specs.model("/m"), specs.drafter("ngram", 8))
    record = plan_record(spec, build(spec, PORTS))
    assert set(record) == {"model", "drafter", "gpu", "capture", "locked_mhz", "command", "environment"}
    assert record["drafter"] == "ngram-8"


def test_ports_are_held_until_they_are_released() -> None:
    held = HeldPorts()
    assert len(set(held.numbers)) == 2
    assert not is_free(held.ports.http)
    held.release()
    assert is_free(held.ports.http)


def test_building_twice_gives_the_same_command() -> None:
    spec = specs.launch(specs.model("/m"), specs.drafter("ngram", 8))
    assert build(spec, PORTS) == build(replace(spec), PORTS)
