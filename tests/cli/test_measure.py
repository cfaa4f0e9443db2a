"""`measure`: one paired measurement without Snakemake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specjoule.errors import ConfigurationError
from specjoule.study.single import SCALES, Wish, model_from_folder, single_study
from specjoule.windows.io import read_window_table
from specjoule.workflow import Project
from tests.cli.conftest import Run

WISH = Wish(
    name="one", model="smollm2-135m-instruct", drafters=("ngram-4",), prompts="code", concurrency=(2,), gpu="cpu"
)


def test_it_prints_the_pair_and_writes_ordinary_raw_windows(project_folder: Path, run: Run) -> None:
    ran = run("measure", "--drafter", "ngram-4", "--concurrency", 2, "--name", "one", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["energy"] == "simulated, not measured"
    (pair,) = document["pairs"]
    assert pair["drafter"] == "ngram-4"
    assert abs(pair["energy_ratio"] - pair["power_ratio"] / pair["speedup"]) < 1e-9
    for file in document["files"]:
        assert read_window_table(Path(file)).num_rows >= 2
        assert run("describe", file).code == 0


def test_the_same_name_goes_on_instead_of_measuring_twice(project_folder: Path, run: Run) -> None:
    first = json.loads(run("measure", "--name", "one", "--json").out)
    journal = next(Path("results/store/one").glob("*/journal.jsonl"))
    length = journal.stat().st_size
    assert json.loads(run("measure", "--name", "one", "--json").out) == first
    assert journal.stat().st_size == length


def test_a_name_that_holds_other_settings_is_refused_and_nothing_is_written_over(measured: Project, run: Run) -> None:
    def contents() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in Path("results").rglob("*") if p.is_file()}

    before = contents()
    said = run("measure", "--name", measured.name, "--concurrency", 4).sentence
    assert "another --name" in said and measured.name in said
    assert contents() == before
    shutil.rmtree(measured.store)  # the raw files alone are worth as much
    assert "another --name" in run("measure", "--name", measured.name, "--concurrency", 4).sentence


def test_a_larger_measurement_of_the_same_settings_may_go_on(project_folder: Path, run: Run) -> None:
    assert run("measure", "--name", "one", "--minutes", 30).code == 0
    assert run("measure", "--name", "one", "--minutes", 30, "-c", 1, "-c", 4).code == 0
    assert "another --name" in run("measure", "--name", "one", "--minutes", 30).sentence


def test_a_table_for_people(project_folder: Path, run: Run) -> None:
    ran = run("measure", "-d", "ngram-4", "-d", "layerskip-4", "-c", 1, "-c", 4, "--minutes", 30, columns=80)
    assert ran.code == 0
    assert "…" not in ran.out, "a column is cut in a terminal of 80 columns"
    assert "simulated, not measured" in ran.out
    assert ran.out.count("ngram-4") == 2
    assert "One seed: no spread" in " ".join(ran.out.split())


def test_what_does_not_count_is_named_in_full_with_its_reason(project_folder: Path, run: Run) -> None:
    ran = run("measure", "-d", "ngram-4", "-c", 1, "-c", 500)
    assert ran.code == 0
    assert "ngram-4 at 500 does not count: not_enough_prompts" in ran.out


def test_ones_own_prompt_file(project_folder: Path, run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    items = [
        {"id": f"p{i}", "language": "en", "license": "CC0-1.0", "messages": [{"role": "user", "content": f"Task {i}"}]}
        for i in range(8)
    ]
    own.write_text("".join(json.dumps(i) + "\n" for i in items))
    sealed = tmp_path / "sealed.jsonl"
    assert run("prompts", "seal", own, "--output", sealed).code == 0
    document = json.loads(run("measure", "--prompts", sealed, "--name", "own", "--json").out)
    assert all("/sealed/" in f for f in document["files"])
    assert "digest of 'p0' does not match" in run("measure", "--prompts", own).sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--drafter", "ngram4"], "did you mean 'ngram-4'"),
        (["--model", "smollm2"], "no 'smollm2' in the catalogue"),
        (["--model", "nowhere/model"], "holds no config.json"),
        (["--prompts", "cod"], "did you mean 'code'"),
        (["--prompts", "none.jsonl"], "no such prompt file"),
        (["--study", "none.yaml"], "no such file"),
        (["--study", "config"], "is a folder"),
        (["--engine", "refrence"], "did you mean 'reference'"),
        (["--minutes", "0.05", "-c", "1", "-c", "2", "-c", "4"], "raise --minutes"),
        (["--name", "../up"], "study"),
        (["--meter", "rapl"], "engine 'scripted' brings its own meter and cannot be read by 'rapl'"),
    ],
)
def test_wrong_input_is_one_sentence(project_folder: Path, run: Run, arguments: list[str], words: str) -> None:
    assert words in run("measure", *arguments).sentence
    assert not list(Path().glob("results/raw/*"))


def test_a_seed_that_cannot_be_stored_is_refused_by_its_option(project_folder: Path, run: Run) -> None:
    ran = run("measure", "--seed", 2**70)
    assert ran.code == 2 and "--seed" in ran.err
    assert not list(Path().glob("results/*/measure*"))


def test_the_budget_decides_how_many_waves() -> None:
    base = Path(__file__).resolve().parents[2] / "config" / "config.yaml"
    plenty, forecast = single_study(base, Wish(**{**WISH.__dict__, "budget_s": 3600.0}))
    assert (plenty.file.protocol.min_prompts, plenty.file.protocol.min_window_s) == SCALES[0]
    assert forecast <= 3600
    little, forecast = single_study(base, Wish(**{**WISH.__dict__, "budget_s": 90.0}))
    assert forecast <= 90
    assert little.file.protocol.min_window_s < SCALES[0][1]


def test_a_drafter_of_another_model_is_refused(tmp_path: Path) -> None:
    base = Path(__file__).resolve().parents[2] / "config" / "config.yaml"
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "vocab_size": 100, "dtype": "float32"})
    )  # fmt: skip
    assert model_from_folder(folder).name == "my-model"
    study, _ = single_study(base, Wish(**{**WISH.__dict__, "model": str(folder)}))
    assert study.models["my-model"].architecture.head_dim == 16
    with pytest.raises(ConfigurationError, match="'layerskip-4' applies to none"):
        single_study(base, Wish(**{**WISH.__dict__, "model": str(folder), "drafters": ("layerskip-4",)}))


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "vocab_size": 100}
NESTED = {
    "model_type": "gemma3", "hidden_size": 9, "vision_config": {"hidden_size": 7}, "dtype": "bfloat16",
    "text_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 32, "vocab_size": 100},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kv_heads", "head_dim", "dtype"), [(GPT2, 4, 16, "float32"), (NESTED, 2, 32, "bfloat16")]
)
def test_sizes_under_the_names_that_checkpoints_use(
    tmp_path: Path, config: dict[str, Any], kv_heads: int, head_dim: int, dtype: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = model_from_folder(tmp_path)
    found = model.architecture
    assert (found.hidden_size, found.layers, found.query_heads, found.vocabulary) == (64, 2, 4, 100)
    assert (found.kv_heads, found.head_dim, model.weight_dtype) == (kv_heads, head_dim, dtype)
    assert found.parameters == 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 4 * 64)
    (tmp_path / "model.safetensors").write_bytes(bytes(800))
    assert model_from_folder(tmp_path).architecture.parameters == (200 if dtype == "float32" else 400)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([1], "holds no mapping of keys"),
        (GPT2 | {"n_head": 0}, r"n_head: must be a whole number of at least 1 \(found 0\)"),
        (GPT2 | {"n_head": True}, "n_head: must be a whole number"),
        (GPT2 | {"n_embd": "wide"}, r"n_embd: must be a whole number of at least 1 \(found 'wide'\)"),
        (GPT2 | {"n_inner": -1}, "n_inner: must be a whole number"),
        (GPT2 | {"n_head": 65}, r"more attention heads \(65\) than its width \(64\)"),
        (GPT2 | {"n_head": None}, "lacks 'num_attention_heads' or 'n_head'; only causal language models are known"),
        (GPT2 | {"text_config": [1]}, "text_config: must be a mapping of keys"),
        (GPT2 | {"is_encoder_decoder": True}, "only causal language models are known"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_sentence(tmp_path: Path, config: Any, words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=rf"config\.json: .*{words}"):
        model_from_folder(tmp_path)


def test_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no config\.json"):
        model_from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read as JSON"):
        model_from_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 4, "vocab_size": 9}')
    with pytest.raises(ConfigurationError, match="lacks"):
        model_from_folder(tmp_path)
