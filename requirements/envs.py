"""Makes envs/*.yaml from pyproject.toml and requirements/lock.txt: `python requirements/envs.py`, after lock.sh.

Each file pins everything its extra needs, with what that needs in turn, at the versions of the lock file. Run it in an
environment that has all extras installed: that is where the dependencies of dependencies are read from.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {
    "core": ("", "the workflow, simulated boards, tables and figures"),
    "reference": ("reference", "the above and the reference engine (PyTorch)"),
    "slurm": ("slurm", "the workflow with Snakemake's Slurm plugin"),
    "docs": ("docs,notebooks", "documentation and notebooks"),
}
LEFT_TO_TORCH = re.compile(r"nvidia-(cublas|cu|nv|nccl)|cuda-|triton")
"""CUDA libraries that one build of torch brings along are that build's to pin."""


def pins() -> dict[str, str]:
    """Return the lock file's versions by canonical name."""
    found = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", (ROOT / "requirements/lock.txt").read_text(), re.M
    )
    return {canonicalize_name(name): version for name, version in found}


def closure(requirements: list[str], locked: dict[str, str]) -> dict[str, str]:
    """Return name and version of `requirements` and of all they need here."""
    wanted: dict[str, str] = {}
    front = [Requirement(r) for r in requirements]
    while front:
        requirement = front.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if LEFT_TO_TORCH.match(name) and name != "nvidia-ml-py":
            continue
        if name in wanted and not requirement.extras:
            continue
        if name not in locked:
            raise SystemExit(f"error: {name} is not in requirements/lock.txt; run requirements/lock.sh first")
        wanted[name] = locked[name]
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                needed.marker = None
                front.append(needed)
    return dict(sorted(wanted.items()))


def main() -> int:
    """Write the files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = pins()
    for name, (extras, what) in ENVIRONMENTS.items():
        requirements = list(project["dependencies"])
        for extra in filter(None, extras.split(",")):
            requirements += project["optional-dependencies"][extra]
        lines = [
            f"# {what[0].upper()}{what[1:]}. Made by requirements/envs.py; versions as in requirements/lock.txt.",
            f"#   conda env create -f envs/{name}.yaml",
            f"#   conda activate specjoule-{name} && pip install --no-deps -e .",
            f"name: specjoule-{name}",
            "channels: [conda-forge]",
            "dependencies:",
            "  - python=3.12",
            "  - pip",
            "  - pip:",
            *(f"      - {package}=={version}" for package, version in closure(requirements, locked).items()),
            "",
        ]
        (ROOT / "envs" / f"{name}.yaml").write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
