"""Refusals of a study: file, key, reason, nearest valid name; and the shipped files agree with their schemas."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import REPO, SCRIPTED, write_study

from specjoule.errors import ConfigurationError
from specjoule.study.load import CATALOGUES, load_study
from specjoule.study.schema import catalogue_schema, study_schema


def changed(**keys: Any) -> dict[str, Any]:
    study = copy.deepcopy(SCRIPTED)
    for path, value in keys.items():
        at = study
        *parents, last = path.split("__")
        for key in parents:
            at = at.setdefault(key, {})
        at[last] = copy.deepcopy(value)
    return study


REAL = {"engine": {"name": "reference"}, "meter": {"name": "auto"}}

REFUSED = [
    (changed(**REAL, engine__settings={"thread": 2}), r"the reference engine does not know 'thread'"),
    (
        changed(**REAL, engine__settings={"attention": "pakced"}),
        r"engine\.settings\.attention: 'pakced' is not allowed; did you mean 'packed'\?",
    ),
    (
        changed(**REAL, engine__settings={"attention": None}),
        r"attention: 'None' is not allowed; valid: eager, packed, ",
    ),
    (changed(**REAL, engine__settings={"attention": ["sdpa"]}), r"engine\.settings\.attention: .* is not allowed"),
    (changed(**REAL, engine__settings={"device": "cpu:a"}), r"engine\.settings\.device: 'cpu:a' is no device"),
    (changed(**REAL, engine__settings={"threads": 2**40}), r"engine\.settings\.threads: must be at most 1024"),
    (changed(**REAL, engine__settings={"threads": None}), r"engine\.settings\.threads: must be a whole number"),
    (changed(**REAL, engine__settings={"model_path": ""}), r"engine\.settings\.model_path: must not be empty"),
    (changed(**REAL, engine__settings={"device": "cuda:0"}), r"device: 'cuda:0' is not what 'cpu' stands for"),
    (changed(engine={"name": "reference"}, meter={"name": "nvml"}), r"'nvml' counts a GPU, but 'cpu' is the processor"),
    (changed(engine={"name": "reference"}, meter={"name": "simulated"}), r"'simulated' goes with a simulated engine"),
    (changed(meter={"name": "rapl"}), r"engine 'scripted' brings its own meter"),
    (changed(engine={"name": "vllm"}), r"engine\.name: 'vllm' is not allowed; valid: .*sglang"),
    (
        changed(engine={"name": "sglang"}, meter={"name": "estimate"}, grids__base__gpus=["H100"]),
        r"but 'H100' computes",
    ),
    (changed(analysis__mixes={"x": {"cod": 1}}), r"analysis\.mixes\.x: no corpus 'cod' .* did you mean 'code'"),
    (changed(**REAL, protocol__ngram_state="warm"), r"ngram_state: the reference engine keeps no state"),
    (changed(**REAL, grids__base__context_tokens=[1024]), r"context_tokens: the reference engine runs prompts as"),
    (changed(grids__base__context_tokens=[5, 5]), r"'context_tokens' lists 5 twice"),
    (changed(protocl={}), r"protocl: unknown key; did you mean 'protocol'\?"),
    (changed(protocol__max_new_token=3), r"protocol\.max_new_token: unknown key; did you mean 'max_new_tokens'\?"),
    (changed(engine__name="sglan"), r"engine\.name: 'sglan' is not allowed; did you mean 'sglang'\?"),
    (changed(grids__base__drafters=["plain", "ngrm-4"]), r"grids\.base\.drafters: no 'ngrm-4' .* 'ngram-4'\?"),
    (changed(grids__base__corpora=["cod"]), r"grids\.base\.corpora: no 'cod' .* did you mean 'code'\?"),
    (changed(grids__base__drafters=["ngram-4"]), r"lacks 'plain'"),
    (changed(grids__base__concurrency=[0]), r"grids\.base\.concurrency\.0: .*greater than or equal to 1"),
    (changed(grids__base__concurrency=[4, 4]), r"'concurrency' lists 4 twice"),
    (changed(grids__base__locked_mhz=[1500]), r"locked_mhz: clocks of 'cpu' cannot be locked"),
    (changed(protocol__min_prompts="many"), r"protocol\.min_prompts: .*integer.*'many'"),
    (changed(grids={}), r"grids: .*at least 1"),
    (changed(protocol__min_window_s=float("inf")), r"min_window_s: .*finite"),
    (changed(protocol__max_prompt_tokens=0), r"max_prompt_tokens: .*greater than or equal to 1"),
    (changed(analysis__headline_target_ms=-3), r"headline_target_ms: .*greater than 0"),
    (changed(analysis__latency_targets_ms=[10, -1]), r"latency_targets_ms\.1: .*greater than 0"),
    (changed(meter__calibration_file="x.json"), r"meter\.calibration_file: unknown key"),
    (changed(study="a b"), r"study: a name begins with a letter or digit .* \(found 'a b'\)$"),
    (
        changed(engine={"name": "scripted", "settings": {"acept": 0.5}}),
        r"engine\.settings\.acept: unknown key; valid: accept, fail",
    ),
    (changed(engine={"name": "scripted", "settings": {"fail": {"plain": "boom"}}}), r"engine\.settings\.fail\.plain: "),
    (
        changed(**REAL, engine__settings={"threads": 1}, engine__host_settings={"attention": "eager"}),
        r"engine\.host_settings\.attention: it changes what is measured; put it under settings \(valid: drafter_path, ",
    ),
    (changed(**REAL, engine__host_settings={"device": "cuda"}), r"engine\.host_settings\.device: it changes what is"),
    (changed(**REAL, engine__host_settings={"prefill_tokens": 8}), r"host_settings\.prefill_tokens: it changes what"),
    (
        changed(**REAL, engine__host_settings={"drafter_paht": "x"}),
        r"engine\.host_settings\.drafter_paht: .*\(did you mean 'drafter_path'\?\)",
    ),
    (
        changed(**REAL, engine__settings={"model_path": "a"}, engine__host_settings={"model_path": "b"}),
        r"engine\.host_settings\.model_path: it is given under settings too; drop one of the two",
    ),
    (changed(engine__host_settings={"accept": 0.6}), r"host_settings\.accept: it changes what is measured"),
    (
        changed(engine={"name": "simulated", "host_settings": {"world_seed": 1}}),
        r"host_settings\.world_seed: it changes what is measured; .*'simulated' has no setting of the host",
    ),
    (
        changed(
            engine={"name": "sglang", "host_settings": {"attention_backend": "fa3"}},
            meter={"name": "nvml"},
            grids__base__gpus=["H100"],
        ),
        r"host_settings\.attention_backend: it changes what is measured",
    ),
    (changed(grids__base__seeds=[2**70]), r"grids\.base\.seeds\.0: .*less than or equal to 4294967295"),
    (changed(grids__base__seeds=[-1]), r"grids\.base\.seeds\.0: .*greater than or equal to 0"),
    (changed(grids__base__replicates=[2**70]), r"grids\.base\.replicates\.0: .*less than or equal to 2147483647"),
    (changed(grids__base__replicates=[]), r"grids\.base\.replicates: .*at least 1 item"),
    (changed(grids__base__capture=[]), r"grids\.base\.capture: .*at least 1 item"),
    (changed(grids__base__locked_mhz=[]), r"grids\.base\.locked_mhz: .*at least 1 item"),
    (changed(grids__base__context_tokens=[]), r"grids\.base\.context_tokens: .*at least 1 item"),
    (changed(grids__base__instrumentation=[]), r"grids\.base\.instrumentation: .*at least 1 item"),
    (changed(protocol__settle={"min_s": 5, "max_s": 2}), r"protocol\.settle: min_s \(5\) is beyond max_s \(2\)"),
    (changed(blocks={"store": ""}), r"blocks\.store: .*at least 1 character"),
    (changed(protocol__max_new_tokens=1), r"protocol\.max_new_tokens: must be at least 2: the first token comes from"),
    (changed(grids__base__max_new_tokens=1), r"grids\.base\.max_new_tokens: must be at least 2"),
    (changed(**REAL, engine__version="9.9"), r"engine\.version: '9\.9' is no release of engine 'reference'"),
    (
        changed(engine={"name": "simulated", "version": "2"}),
        r"engine\.version: simulated boards have no release to pin",
    ),
    (changed(engine="scripted"), r"engine: must be a mapping of keys"),
    (changed(grids__base__concurrency=4), r"grids\.base\.concurrency: must be a list \(found 4\)$"),
    (changed(grids__base__seeds=["a"]), r"grids\.base\.seeds\.0: [^\n]*$"),
    (changed(grids__base__inferred=["sseeds"]), r"grids\.base: 'inferred' names sseeds, which a grid does not have$"),
    (changed(grids__base__corpora=["CODE"]), r"grids\.base\.corpora: no 'CODE' .* did you mean 'code'"),
    (changed(**REAL, engine__settings={"dtype": "float16"}), r"dtype: is float16, but the weight_dtype of smollm2"),
    (changed(analysis__mixes={"x": {"code": -1}}), r"analysis\.mixes\.x: weights must be non-negative"),
    (
        changed(engine={"name": "reference"}, meter={"name": "auto"}, grids__base__capture=[True]),
        r"grids\.base\.capture: there are no graphs to capture on 'cpu'",
    ),
]


@pytest.mark.parametrize(("study", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_a_wrong_study_is_refused_with_file_key_and_remedy(
    project_folder: Path, study: dict[str, Any], message: str
) -> None:
    path = write_study(project_folder, study)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_study(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("kind", "name", "entry", "message"),
    [
        ("drafters", "plain", {"scheme": "ngram", "draft_tokens": 3, "verify_width": 4}, "'plain' has scheme 'ngram'"),
        ("drafters", "ngram-4", {"scheme": "plain", "draft_tokens": 0, "verify_width": 1}, "'ngram-4' has scheme 'pla"),
        ("drafters", "ngram-4", 5, "drafters.ngram-4: must be a mapping of keys (found 5)"),
        ("drafters", "ngram-4", {"name": "ngram-9"}, "drafters.ngram-4.name: an entry is named by its key"),
        ("models", "smollm2-135m-instruct", {"forecast_itl_ms": {"cpu": {0: 5}}}, "greater than or equal to 1"),
        ("models", "smollm2-135m-instruct", {"forecast_itl_ms": {"cpu": {1: 0}}}, "greater than 0"),
        ("models", "smollm2-135m-instruct", {"checkpoint": {"path": ""}}, "checkpoint.path: "),
        (
            "corpora",
            "code",
            {"twin": "cod"},
            "corpus 'code' has a twin 'cod' that is not in the catalogue; did you mean",
        ),
    ],
)
def test_a_catalogue_entry_that_stands_for_nothing_is_refused(
    project_folder: Path, kind: str, name: str, entry: Any, message: str
) -> None:
    catalogue = project_folder / "config" / f"{kind}.yaml"
    entries = yaml.safe_load(catalogue.read_text(encoding="utf-8"))
    entries[kind][name] = {**entries[kind][name], **entry} if isinstance(entry, dict) else entry
    catalogue.write_text(yaml.safe_dump(entries), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_study(write_study(project_folder, changed()))


def test_heads_that_a_checkpoint_does_not_have_cannot_draft(project_folder: Path) -> None:
    catalogue = project_folder / "config" / "drafters.yaml"
    entries = yaml.safe_load(catalogue.read_text(encoding="utf-8"))
    entries["drafters"]["MTP-4"]["models"] = ["Qwen3-4B", "Qwen3.6-27B"]
    catalogue.write_text(yaml.safe_dump(entries), encoding="utf-8")
    grid = {"grids__base__drafters": ["plain", "MTP-4"], "grids__base__gpus": ["H100"]}
    load_study(write_study(project_folder, changed(**grid, grids__base__models=["Qwen3.6-27B"])))
    with pytest.raises(ConfigurationError, match=r"'MTP-4' drafts with heads .*, and 'Qwen3-4B' has none"):
        load_study(write_study(project_folder, changed(**grid, grids__base__models=["Qwen3-4B", "Qwen3.6-27B"])))


def test_a_missing_catalogue_is_told_from_a_missing_study(project_folder: Path) -> None:
    path = write_study(project_folder, changed(catalogues={"models": "mine.yaml"}))
    with pytest.raises(ConfigurationError, match=r"mine\.yaml: no such file; put the catalogue of models there"):
        load_study(path)


@pytest.mark.parametrize(
    ("engine", "entry", "message"),
    [
        ("reference", {"scheme": "eagle3"}, "the reference engine does not run scheme eagle3; it runs plain, "),
        ("reference", {"scheme": "ngram", "settings": {"min_ngram": 3, "max_ngram": 1}}, "min_ngram <= max_ngram"),
        ("reference", {"scheme": "ngram", "settings": {"max_ngram": "two"}}, "min_ngram <= max_ngram, not 1 and 'two'"),
        ("reference", {"scheme": "ngram", "settings": {"max_gram": 3}}, "does not know 'max_gram'; it knows min_ngram"),
        ("reference", {"scheme": "layer-skip"}, "needs `kept_layers`"),
        ("reference", {"scheme": "layer-skip", "settings": {"kept_layers": 31}}, "is 31, but the model has 30 layers"),
        ("reference", {"scheme": "layer-skip", "settings": {"kept_layers": [0, "x"]}}, "must be rising indices"),
        ("sglang", {"scheme": "layer-skip"}, "SGLang has no scheme 'layer-skip'"),
        ("sglang", {"scheme": "ngram", "settings": {"max_gram": 3}}, "has no setting 'max_gram'"),
    ],
)
def test_a_drafter_that_the_engine_cannot_run_is_refused_before_any_job(
    project_folder: Path, engine: str, entry: dict[str, Any], message: str
) -> None:
    catalogue = project_folder / "config" / "drafters.yaml"
    entries = yaml.safe_load(catalogue.read_text(encoding="utf-8"))
    entries["drafters"]["odd"] = {"draft_tokens": 3, "verify_width": 4, **entry}
    catalogue.write_text(yaml.safe_dump(entries), encoding="utf-8")
    study = changed(engine={"name": engine}, meter={"name": "auto"}, grids__base__drafters=["plain", "odd"])
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        load_study(write_study(project_folder, study))
    assert "grids.base.drafters: drafter " in str(caught.value)


def test_a_missing_key_is_named(project_folder: Path) -> None:
    study = changed()
    del study["engine"]
    with pytest.raises(ConfigurationError, match="engine: missing; add it"):
        load_study(write_study(project_folder, study))


def test_a_key_given_twice_is_refused_with_its_line(project_folder: Path) -> None:
    path = project_folder / "config" / "config.yaml"
    path.write_text("study: a\nstudy: b\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"line 2: .*key 'study' is given twice"):
        load_study(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no keys"),
        (b"- a\n", "holds no keys"),
        (b"a: [", "not valid YAML"),
        (b"\xff\xfe\x00\x01", "as text"),
    ],
)
def test_a_file_that_is_no_study_is_refused_in_one_sentence(project_folder: Path, content: bytes, message: str) -> None:
    path = project_folder / "config" / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load_study(path)


def test_no_file_and_a_folder_are_told_apart(project_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        load_study(project_folder / "nothing.yaml")
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_study(project_folder)


def test_widths_that_contradict_each_other_are_refused(project_folder: Path) -> None:
    drafters = project_folder / "config" / "drafters.yaml"
    catalogue = yaml.safe_load(drafters.read_text())
    catalogue["drafters"]["ngram-4"]["verify_width"] = 5
    drafters.write_text(yaml.safe_dump(catalogue))
    with pytest.raises(ConfigurationError, match="proposes 3 and verifies 5"):
        load_study(project_folder / "config" / "config.yaml")


def test_one_drafter_under_two_names_is_refused(project_folder: Path) -> None:
    drafters = project_folder / "config" / "drafters.yaml"
    catalogue = yaml.safe_load(drafters.read_text())
    catalogue["drafters"]["ngram-4b"] = catalogue["drafters"]["ngram-4"]
    drafters.write_text(yaml.safe_dump(catalogue))
    path = write_study(project_folder, changed(grids__base__drafters=["plain", "ngram-4", "ngram-4b"]))
    with pytest.raises(ConfigurationError, match="'ngram-4' and 'ngram-4b' are the same"):
        load_study(path)


def test_every_shipped_study_loads() -> None:
    names = {"models", "drafters", "gpus", "corpora", "simulation", "site"}
    studies = [p for p in (REPO / "config").glob("*.yaml") if p.stem not in names]
    assert studies
    for path in studies:
        assert load_study(path).name


def test_the_shipped_schemas_are_those_of_the_model() -> None:
    folder = REPO / "config" / "schemas"
    assert json.loads((folder / "study.schema.json").read_text()) == study_schema(), "run `specjoule schema`"
    for kind in CATALOGUES:
        shipped = json.loads((folder / f"{kind}.schema.json").read_text())
        assert shipped == catalogue_schema(kind), "run `specjoule schema`"


def test_overrides_replace_nested_keys_and_leave_the_rest(project_folder: Path) -> None:
    study = load_study(project_folder / "config" / "config.yaml", {"protocol": {"max_new_tokens": 7}})
    assert study.file.protocol.max_new_tokens == 7
    assert study.file.protocol.min_prompts == SCRIPTED["protocol"]["min_prompts"]


@pytest.mark.parametrize("key", ["? [a, b]\n: 1", "? {a: 1}\n: 1"])
def test_a_list_as_a_key_is_refused_by_its_line(project_folder: Path, key: str) -> None:
    path = project_folder / "config" / "config.yaml"
    path.write_text(f"study: tiny\n{key}\n", encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"config\.yaml, line 2: not valid YAML \(a list or mapping is no key\)"
    ):
        load_study(path)
