"""Models, drafters and launches for the tests, made by hand so that no configuration file is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specjoule.engines.base import LaunchSpec
from specjoule.study.catalogue import Architecture, Checkpoint, DraftCheckpoint, Drafter, Gpu, Model

H100 = Gpu(name="h100", device="cuda", product="NVIDIA H100 80GB HBM3", power_limit_w=700)
CPU = Gpu(name="cpu", device="cpu", product="host processor")
SIZES = Architecture(parameters=1e6, hidden_size=32, layers=2, query_heads=2, kv_heads=1, head_dim=16, vocabulary=320)


def model(path: str | Path, name: str = "tiny", family: str = "Qwen3", **more: Any) -> Model:
    """Return a target model at `path`."""
    return Model(
        name=name, family=family, checkpoint=Checkpoint(path=str(path), revision=None), architecture=SIZES, **more
    )


def drafter(
    scheme: str, width: int = 1, draft: str | Path | None = None, name: str | None = None, **settings: Any
) -> Drafter:
    """Return a drafter of a scheme that verifies `width` positions of the model `tiny`."""
    checkpoints = {} if draft is None else {"tiny": DraftCheckpoint(path=str(draft))}
    return Drafter(
        name=name or f"{scheme}-{width}",
        scheme=scheme,  # type: ignore[arg-type]
        draft_tokens=width - 1,
        verify_width=width,
        checkpoints=checkpoints,
        settings=settings,
    )


def launch(
    target: Model,
    how: Drafter,
    folder: Path = Path("/tmp/specjoule-tests"),
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> LaunchSpec:
    """Return a launch with the paper study's defaults, changed by `more`."""
    values: dict[str, Any] = {
        "model": target,
        "gpu": H100,
        "drafter": how,
        "capture": True,
        "locked_mhz": None,
        "concurrencies": (1, 4, 16),
        "max_new_tokens": 512,
        "max_prompt_tokens": None,
        "seed": 3,
        "settings": dict(settings or {}),
        "device_uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "log_path": folder / "server.log",
        "cache_dir": folder / "cache",
        "weight_dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }
    return LaunchSpec(**(values | more))


def cases(stand_ins: Mapping[str, Path]) -> dict[str, LaunchSpec]:
    """Return one launch for every scheme, architecture and factor of the paper study."""
    qwen = model(stand_ins["qwen3"])
    hybrid = model(stand_ins["qwen3.6-hybrid"], attention="hybrid", draft_heads=True)
    hybrid_moe = model(stand_ins["qwen3.6-hybrid-moe"], attention="hybrid", draft_heads=True)
    glm = model(stand_ins["glm4-moe-lite"], attention="latent", draft_heads=True)
    joyai = model(stand_ins["deepseek-v3"], attention="latent", draft_heads=True)
    gemma = model(stand_ins["gemma4"], family="Gemma 4", attention="sliding")
    unified = model(stand_ins["gemma4-unified"], family="Gemma 4", attention="sliding")
    coder = model(stand_ins["qwen3-moe"])
    plain = drafter("plain")
    drafts = {name.removeprefix("draft-"): path for name, path in stand_ins.items() if name.startswith("draft-")}
    matched = {"max_total_tokens": 20000, "max_running_requests": 16, "disable_overlap_schedule": True, "page_size": 1}
    return {
        "plain": launch(qwen, plain),
        "plain, capture off": launch(qwen, plain, capture=False),
        "plain, minimal flags": launch(qwen, plain, settings={"instrumentation": "minimal"}),
        "plain, fp8 weights and kv": launch(qwen, plain, weight_dtype="fp8", kv_dtype="fp8"),
        "plain-matched": launch(qwen, drafter("plain-matched"), settings={"matched": matched}),
        "plain, hybrid": launch(hybrid, plain),
        "plain, hybrid moe": launch(hybrid_moe, plain),
        "plain, latent": launch(glm, plain),
        "plain, sliding": launch(gemma, plain),
        "plain, moe": launch(coder, plain),
        "plain, joyai": launch(joyai, plain),
        **{f"ngram-{w}": launch(qwen, drafter("ngram", w)) for w in (2, 4, 8, 16, 33)},
        "ngram with a trie": launch(qwen, drafter("ngram", 8, max_trie_depth=12, max_bfs_breadth=1)),
        "ngram, hybrid": launch(hybrid, drafter("ngram", 8)),
        "mtp, hybrid": launch(hybrid, drafter("mtp", 4)),
        "mtp, hybrid moe": launch(hybrid_moe, drafter("mtp", 4)),
        "mtp, latent": launch(glm, drafter("mtp", 2)),
        "mtp, joyai": launch(joyai, drafter("mtp", 4)),
        "assistant": launch(gemma, drafter("assistant", 4, drafts["assistant"])),
        "assistant, unified": launch(unified, drafter("assistant", 4, drafts["unified-assistant"])),
        "eagle3": launch(qwen, drafter("eagle3", 4, drafts["eagle3"])),
        "eagle3, moe": launch(coder, drafter("eagle3", 4, drafts["eagle3"])),
        "eagle3, capture off": launch(qwen, drafter("eagle3", 4, drafts["eagle3"]), capture=False),
        "dflash-16": launch(qwen, drafter("dflash", 16, drafts["dflash"])),
        "dflash-7": launch(qwen, drafter("dflash", 7, drafts["dflash"])),
        "dspark-7": launch(qwen, drafter("dspark", 7, drafts["dspark"])),
        "dspark-7, confidence": launch(
            qwen,
            drafter(
                "dspark", 7, drafts["dspark"], ragged_verify="compact", align_to_graph_tier=True, sts_table="/t/sts"
            ),
        ),
        "dspark-7, capped": launch(qwen, drafter("dspark", 7, drafts["dspark"], ragged_verify="cap-accept")),
        "draft-model": launch(qwen, drafter("draft-model", 4, drafts["draft-model"])),
    }


STAND_INS: tuple[str, ...] = (
    "qwen3", "qwen3-moe", "gemma4", "gemma4-unified", "qwen3.6-hybrid", "qwen3.6-hybrid-moe", "glm4-moe-lite",
    "deepseek-v3", "draft-eagle3", "draft-dflash", "draft-dspark", "draft-assistant", "draft-unified-assistant",
    "draft-draft-model",
)  # fmt: skip
"""Names of the stand-in checkpoints, so that cases can be listed before any is written."""
