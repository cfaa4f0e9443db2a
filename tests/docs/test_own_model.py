"""The steps of docs/own-model.md, with the scripted engine in place of weights that nobody here has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.conftest import REPO, fences


@pytest.mark.slow
def test_the_steps_of_the_page(copy_of_study: Path, environment: dict[str, str]) -> None:
    blocks = fences(REPO / "docs" / "own-model.md")
    entry, study = (yaml.safe_load(f.text) for f in blocks if f.language == "yaml")
    (steps,) = [f for f in blocks if f.elsewhere == "tests/docs/test_own_model.py"]
    catalogue = copy_of_study / "config" / "models.yaml"
    models = yaml.safe_load(catalogue.read_text(encoding="utf-8"))
    models["models"] |= entry["models"]
    catalogue.write_text(yaml.safe_dump(models, sort_keys=False), encoding="utf-8")
    study |= {"engine": {"name": "scripted", "settings": {}}, "meter": {"name": "simulated"}}
    study["grids"]["base"]["seeds"] = [1]
    (copy_of_study / "config" / "mine.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps.text],
        cwd=copy_of_study, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((copy_of_study / "results/raw/mine/my-model/cpu/ngram-4/code").glob("c*/s1.parquet"))
    assert (copy_of_study / "paper_figures/mine/manifest.json").exists()
