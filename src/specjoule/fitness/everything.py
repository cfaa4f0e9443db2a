"""All probes in the order they are printed."""

from __future__ import annotations

from pathlib import Path

from specjoule.fitness import host, meters, project
from specjoule.fitness.finding import Finding


def examine(study_path: Path) -> list[Finding]:
    """Return every finding for measuring the study at `study_path` on this machine; takes about a second."""
    study_finding, study = project.study_file(study_path)
    gpus = list(study.gpus.values()) if study else []
    simulated = study is not None and study.file.engine.name in ("simulated", "scripted")
    on_board = any(g.device == "cuda" for g in gpus) and not simulated
    on_processor = not simulated and (study is None or any(g.device == "cpu" for g in gpus))
    root = Path(study.file.meter.powercap_root) if study else Path("/sys/class/powercap")
    findings = [project.software(), project.versions(), study_finding]
    if study is not None:
        findings += [project.engine(study), project.models(study), project.noise(study)]
    findings += [meters.rapl(root, needed=on_processor), *meters.boards(needed=on_board)]
    findings += [host.cores(), host.load(), host.governor(), host.power_supply(), host.memory()]
    return [*findings, host.disk(Path("results")), host.timer()]
