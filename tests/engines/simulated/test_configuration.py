"""The parameters, the paper study and its rehearsal: sources everywhere, the same grids, sizes that make sense."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specjoule.blocks.block import make_blocks
from specjoule.blocks.capacity import expected_capacity
from specjoule.cells.expand import Pool, expand, load_pools
from specjoule.engines.simulated import open_simulated
from specjoule.engines.simulated.parameters import find_parameters, load_parameters, sources
from specjoule.engines.simulated.physics import Physics
from specjoule.engines.simulated.synthetic import synthetic_study, write_synthetic_study
from specjoule.engines.simulated.workload import draft_network, target_network
from specjoule.errors import ConfigurationError
from specjoule.study.load import load_study, study_from_mapping
from specjoule.study.model import Study
from tests.engines.simulated.conftest import ROOT, with_settings

PATH = find_parameters(ROOT, None)


def test_every_value_has_a_source_or_says_assumed() -> None:
    found = sources(PATH)
    assert len(found) > 80
    assert all(len(text) >= len("assumed") for text in found.values())


@pytest.mark.parametrize("leaf", [60, {"value": 60}, *({"value": 60, "source": s} for s in (None, "", " ", 5, False))])
def test_a_value_without_a_source_is_refused(tmp_path: Path, leaf: object) -> None:
    raw = yaml.safe_load(PATH.read_text())
    raw["board"]["byte_pj"] = leaf
    bad = tmp_path / "simulation.yaml"
    bad.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigurationError, match=r"board\.byte_pj.*value, source"):
        load_parameters(bad)


def test_an_unknown_or_missing_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"board\.byte_joules"):
        load_parameters(PATH, {"board": {"byte_joules": 1}})
    with pytest.raises(ConfigurationError, match="no section 'bord'"):
        load_parameters(PATH, {"bord": {}})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_parameters(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"meter": {"refresh_ms": 0}}, "meter.refresh_ms"),
        ({"meter": {"jitter": float("nan")}}, "meter.jitter"),
        ({"board": {"boards_per_kind": 0}}, "board.boards_per_kind"),
        ({"board": {"max_clock_mhz": 1000}}, "max_clock_mhz must be above"),
        ({"kernels": {"tile_positions": 0}}, "kernels.tile_positions"),
        ({"acceptance": {"first_probability": {"dflash": 1.0}}}, "acceptance.first_probability.dflash"),
        ({"acceptance": {"stretch_rounds": 0}}, "acceptance.stretch_rounds"),
    ],
)
def test_a_value_that_no_board_could_have_is_refused(overrides: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_parameters(PATH, overrides)
    assert words in str(error.value)


def test_an_override_of_a_table_leaves_its_other_entries() -> None:
    usual = load_parameters(PATH).acceptance.first_probability
    changed = load_parameters(PATH, {"acceptance": {"first_probability": {"mtp": 0.5}}}).acceptance.first_probability
    assert changed == {**usual, "mtp": 0.5} != usual
    assert load_parameters(PATH).acceptance.first_probability == usual


def test_the_digest_follows_the_values_and_not_the_sources(tmp_path: Path) -> None:
    text = PATH.read_text()
    other = tmp_path / "simulation.yaml"
    other.write_text(text.replace("assumed: coolant or inlet temperature", "assumed, and said otherwise"))
    assert load_parameters(other).digest == load_parameters(PATH).digest
    assert load_parameters(PATH, {"board": {"ambient_c": 20}}).digest != load_parameters(PATH).digest


def test_the_rehearsal_is_the_paper_study_on_other_devices(rehearsal: Study) -> None:
    paper = load_study(ROOT / "config" / "paper.yaml")
    assert paper.file.grids == rehearsal.file.grids and paper.file.protocol == rehearsal.file.protocol
    assert paper.file.engine.name == "sglang" and paper.file.engine.version == "0.5.23"
    assert rehearsal.file.engine.name == "simulated" and rehearsal.file.meter.name == "simulated"


def test_the_paper_study_is_the_one_described() -> None:
    study = load_study(ROOT / "config" / "paper.yaml")
    grids = study.file.grids
    assert len(study.models) == 11 and {m.attention for m in study.models.values()} == {
        "full",
        "sliding",
        "hybrid",
        "latent",
    }
    assert set(study.gpus) == {"H100", "H200"}
    assert {c for g in grids.values() for c in g.corpora} == {
        "code",
        "conversation",
        "long_document",
        "news_en",
        "news_rm",
    }
    assert all(len(g.seeds) >= 3 for g in grids.values())
    assert study.file.protocol.max_new_tokens == 512 and study.file.protocol.ignore_eos
    assert len(grids["base-h200"].models) == 3 and len(grids["base-h100"].models) == 8
    assert grids["clocks"].locked_mhz == (None, 1500, 1200, 900)
    assert grids["context"].context_tokens == (260, 1024)
    assert all(
        "inferred" in type(g).model_fields and set(g.inferred) <= set(type(g).model_fields) for g in grids.values()
    )
    proposals = [study.drafters[d].draft_tokens for d in grids["ngram-length-h200"].drafters]
    assert proposals == [0, 1, 2, 4, 8, 16, 32]
    cells = expand(study, {name: Pool("x", 96) for name in study.corpora})
    assert 4000 < len(cells) < 14_000
    assert len(make_blocks(cells)) == 3 * (11 + 3)


def test_everything_of_the_paper_study_can_be_simulated(rehearsal: Study) -> None:
    p = load_parameters(PATH)
    for gpu in rehearsal.gpus.values():
        Physics(gpu, p.board, p.kernels)
    for model in rehearsal.models.values():
        target = target_network(model, p.kernels)
        assert target.dense_parameters > 0 and target.kernels > 100
        active = model.architecture.active_parameters or model.architecture.parameters
        assert target.flop_per_position == pytest.approx(2 * active)
        for drafter in rehearsal.drafters.values():
            if not drafter.applies_to(model.name):
                continue
            draft = draft_network(drafter, model, target, p.kernels, p.draft)
            assert (draft is None) == (drafter.is_plain or drafter.scheme == "ngram")
            if draft is not None:
                assert drafter.scheme in p.acceptance.first_probability and drafter.scheme in p.acceptance.slope_logit
                assert draft.bytes_loaded < 0.4 * target.bytes_loaded


def test_a_board_that_is_not_described_is_refused(rehearsal: Study) -> None:
    gpu = rehearsal.gpus["H100"].model_copy(update={"peak_flop_s": None})
    with pytest.raises(ConfigurationError, match="peak_flop_s"):
        open_simulated(rehearsal, gpu, "x", 1)


def test_an_unknown_setting_is_refused(rehearsal: Study) -> None:
    with pytest.raises(ConfigurationError, match=r"engine\.settings\.threads"):
        open_simulated(with_settings(rehearsal, threads=2), rehearsal.gpus["H100"], "x", 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"world_seed": "seven"}, "engine.settings.world_seed"),
        ({"world_seed": 1.5}, "engine.settings.world_seed"),
        ({"overrides": ["board"]}, "engine.settings.overrides"),
        ({"overrides": {"board": {"byte_pj": -1}}}, "board.byte_pj"),
        ({"parameters": 5}, "engine.settings.parameters"),
        ({"parameters": "nowhere.yaml"}, "nowhere.yaml: cannot be read"),
        ({"faults": [{"kind": "earthquake"}]}, "engine.settings.faults[0].kind"),
    ],
)
def test_wrong_settings_are_refused_when_the_study_is_read(settings: dict[str, object], words: str) -> None:
    study = {**synthetic_study(168), "engine": {"name": "simulated", "settings": settings}}
    with pytest.raises(ConfigurationError) as error:
        study_from_mapping(study, ROOT / "config" / "synthetic.yaml")
    assert words in str(error.value) and "synthetic.yaml" in str(error.value)


def test_a_board_without_peaks_is_refused_when_the_study_is_read() -> None:
    study = synthetic_study(168)
    study["grids"]["scale"]["gpus"] = ["cpu"]
    with pytest.raises(ConfigurationError, match="gpu 'cpu' cannot be simulated: its entry lacks power_limit_w"):
        study_from_mapping(study, ROOT / "config" / "synthetic.yaml")


def test_a_plan_expects_what_the_overridden_memory_holds(rehearsal: Study) -> None:
    cell = next(c for c in expand(rehearsal, {n: Pool("x", 96) for n in rehearsal.corpora}) if c.model == "Qwen3-4B")
    assert expected_capacity(rehearsal, cell, 64) == (64, None)
    small = with_settings(rehearsal, overrides={"memory": {"static_fraction": 0.01}})
    assert expected_capacity(small, cell, 64) == (0, "oom_load")


@pytest.mark.parametrize("count", [168, 14_000])
def test_synthetic_cells_for_scale(count: int, tmp_path: Path) -> None:
    study = study_from_mapping(synthetic_study(count), ROOT / "config" / "synthetic.yaml")
    cells = expand(study, load_pools(study))
    assert count <= len(cells) < count + 200
    assert len({c.path for c in cells}) == len(cells) == len({c.hash for c in cells})
    assert {len(b.cells) for b in make_blocks(cells)} == {21}
    written = write_synthetic_study(tmp_path / "scale.yaml", count)
    assert yaml.safe_load(written.read_text())["study"] == "scale"
