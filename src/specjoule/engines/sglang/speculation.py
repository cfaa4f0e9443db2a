"""From a drafter to SGLang's speculation flags, and to what its resolver must make of them.

Counting: `verify_width` w is SGLang's number of draft tokens (it counts verified positions); the drafter proposes
w - 1. Every scheme states its expectation in resolved fields, which the resolver test and the started server are both
held to: a server that resolved another width than the study asked for is a bug, not a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specjoule.engines.sglang.checkpoints import Located, locate
from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Drafter, Model

REFERENCE_ONLY: frozenset[str] = frozenset({"max_ngram", "min_ngram"})
"""Drafter settings that only other engines have; SGLang's matcher has no such limits."""

RAGGED_MODES: tuple[str, ...] = ("static", "cap-accept", "compact")


@dataclass(frozen=True)
class Speculation:
    """Flags, environment and the resolved fields they must lead to."""

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    draft: Located | None = None


@dataclass(frozen=True)
class _Asked:
    model: Model
    target: Located
    drafter: Drafter
    draft: Located | None

    @property
    def width(self) -> int:
        return self.drafter.verify_width

    def setting(self, key: str, default: Any = None) -> Any:
        return self.drafter.settings.get(key, default)


def check_entry(drafter: Drafter) -> None:
    """Refuse a scheme or setting that SGLang does not know. Raises ConfigurationError."""
    if drafter.scheme not in SCHEMES:
        raise ConfigurationError(f"drafter '{drafter.name}': SGLang has no scheme '{drafter.scheme}'")
    known = SCHEMES[drafter.scheme][1]
    unknown = sorted(set(drafter.settings) - known - REFERENCE_ONLY)
    if unknown:
        raise ConfigurationError(
            f"drafter '{drafter.name}': SGLang's {drafter.scheme} has no setting '{unknown[0]}'"
            f" (known: {', '.join(sorted(known)) or 'none'})"
        )


def speculation(model: Model, target: Located, drafter: Drafter, checkpoints: str | None) -> Speculation:
    """Return the speculation of a launch. Raises ConfigurationError for a drafter SGLang has no way to run."""
    check_entry(drafter)
    own = drafter.checkpoints.get(model.name)
    draft = locate(own, checkpoints, f"drafter '{drafter.name}' for '{model.name}'") if own is not None else None
    return SCHEMES[drafter.scheme][0](_Asked(model, target, drafter, draft))


def _plain(_: _Asked) -> Speculation:
    return Speculation(expected={"speculative_algorithm": None})


def _ngram(asked: _Asked) -> Speculation:
    width, breadth = asked.width, int(asked.setting("max_bfs_breadth", 1))
    flags = [
        "--speculative-algorithm", "NGRAM",
        "--speculative-num-draft-tokens", str(width),
        "--speculative-ngram-max-bfs-breadth", str(breadth),
    ]  # fmt: skip
    expected: dict[str, Any] = {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": width,
        "speculative_eagle_topk": breadth,
        "speculative_ngram_max_bfs_breadth": breadth,
    }
    for key, flag in (
        ("max_trie_depth", "--speculative-ngram-max-trie-depth"),
        ("capacity", "--speculative-ngram-capacity"),
        ("match_type", "--speculative-ngram-match-type"),
    ):
        if key in asked.drafter.settings:
            flags += [flag, str(asked.setting(key))]
            expected[f"speculative_ngram_{key}"] = asked.setting(key)
    return Speculation(tuple(flags), expected=expected)


def _chain(asked: _Asked, flag: str, resolved: str, draft: Located) -> Speculation:
    """Return a drafter that takes k serial steps and verifies k + 1: steps, topk and tokens are all written out."""
    steps = asked.width - 1
    flags = [
        "--speculative-algorithm", flag,
        *_draft_flags(draft),
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(asked.width),
    ]  # fmt: skip
    expected = {
        "speculative_algorithm": resolved,
        "speculative_draft_model_path": draft.path,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": asked.width,
    }
    return Speculation(tuple(flags), expected=expected, draft=draft)


def _mtp(asked: _Asked) -> Speculation:
    # The heads lie in the target's checkpoint unless the catalogue names another: the path is written out either way.
    return _chain(asked, "NEXTN", "EAGLE", asked.draft or asked.target)


def _assistant(asked: _Asked) -> Speculation:
    # An assistant of this kind promotes NEXTN to an algorithm that has no automatic parameters.
    return _chain(asked, "NEXTN", "FROZEN_KV_MTP", _needed(asked))


def _eagle3(asked: _Asked) -> Speculation:
    return _chain(asked, "EAGLE3", "EAGLE3", _needed(asked))


def _draft_model(asked: _Asked) -> Speculation:
    return _chain(asked, "STANDALONE", "STANDALONE", _needed(asked))


def _block(asked: _Asked, flags: list[str], algorithm: str, draft: Located) -> Speculation:
    """Return a block drafter: one draft pass, so steps and topk resolve to 1 and are not passed."""
    expected = {
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": draft.path,
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": asked.width,
    }
    if "draft_attention_backend" in asked.drafter.settings:
        flags += ["--speculative-draft-attention-backend", str(asked.setting("draft_attention_backend"))]
    return Speculation(tuple(flags), expected=expected, draft=draft)


def _dflash(asked: _Asked) -> Speculation:
    draft = _needed(asked)
    flags = ["--speculative-algorithm", "DFLASH", *_draft_flags(draft)]
    flags += ["--speculative-dflash-block-size", str(asked.width)]
    return _block(asked, flags, "DFLASH", draft)


def _dspark(asked: _Asked) -> Speculation:
    draft = _needed(asked)
    gamma = int(asked.setting("gamma", asked.width - 1))
    if gamma != asked.width - 1:
        raise ConfigurationError(
            f"drafter '{asked.drafter.name}': gamma {gamma} verifies {gamma + 1} positions, "
            f"but verify_width is {asked.width}; write the width that this gamma verifies"
        )
    mode = str(asked.setting("ragged_verify", "static"))
    if mode not in RAGGED_MODES:
        raise ConfigurationError(
            f"drafter '{asked.drafter.name}': ragged_verify '{mode}' is none of {', '.join(RAGGED_MODES)}"
        )
    flags = ["--speculative-algorithm", "DSPARK", *_draft_flags(draft)]
    flags += ["--speculative-dspark-block-size", str(gamma)]
    expected: dict[str, Any] = {"speculative_dspark_block_size": gamma}
    for key, flag, resolved in (
        ("sps_table", "--speculative-dspark-sps-table-path", "speculative_dspark_sps_table_path"),
        ("sts_table", "--speculative-dspark-confidence-sts-path", "speculative_dspark_confidence_sts_path"),
    ):
        if key in asked.drafter.settings:
            if mode == "static" and key == "sps_table":
                raise ConfigurationError(
                    f"drafter '{asked.drafter.name}': {key} has no effect under ragged_verify static"
                )
            flags += [flag, str(asked.setting(key))]
            expected[resolved] = str(asked.setting(key))
    if asked.setting("align_to_graph_tier", False):
        flags.append("--speculative-dspark-align-verify-tokens-to-graph-tier")
        expected["speculative_dspark_align_verify_tokens_to_graph_tier"] = True
    block = _block(asked, flags, "DSPARK", draft)
    return Speculation(block.flags, {"SGLANG_RAGGED_VERIFY_MODE": mode}, {**block.expected, **expected}, block.draft)


def _needed(asked: _Asked) -> Located:
    if asked.draft is None:
        raise ConfigurationError(
            f"drafter '{asked.drafter.name}': no draft checkpoint for '{asked.model.name}' in config/drafters.yaml"
        )
    return asked.draft


def _draft_flags(draft: Located) -> tuple[str, ...]:
    flags = ("--speculative-draft-model-path", draft.path)
    return flags if draft.revision is None else (*flags, "--speculative-draft-model-revision", draft.revision)


_BLOCK = frozenset({"draft_attention_backend"})
SCHEMES: Mapping[str, tuple[Callable[[_Asked], Speculation], frozenset[str]]] = {
    "plain": (_plain, frozenset()),
    "plain-matched": (_plain, frozenset({"matched"})),
    "ngram": (_ngram, frozenset({"max_bfs_breadth", "max_trie_depth", "capacity", "match_type"})),
    "mtp": (_mtp, frozenset()),
    "assistant": (_assistant, frozenset()),
    "eagle3": (_eagle3, frozenset()),
    "draft-model": (_draft_model, frozenset()),
    "dflash": (_dflash, _BLOCK),
    "dspark": (_dspark, _BLOCK | {"gamma", "ragged_verify", "sps_table", "sts_table", "align_to_graph_tier"}),
}
"""Every scheme SGLang can run: how it is launched, and the drafter settings it understands."""
