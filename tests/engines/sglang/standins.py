"""Stand-in `config.json` files, one for each architecture of the paper study and each kind of draft checkpoint.

Only what SGLang's resolver reads is written; sizes come from each architecture's defaults or are small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engines.sglang.tiny import QWEN3, write_checkpoint

TARGETS: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3-moe": {
        **QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "gemma4": {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"},
    "gemma4-unified": {"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified"},
    "qwen3.6-hybrid": {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"},
    "qwen3.6-hybrid-moe": {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"},
    "glm4-moe-lite": {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "num_nextn_predict_layers": 1,
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 1,
    },
}

DRAFTS: dict[str, dict[str, Any]] = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 320,
        "draft_vocab_size": 320,
        "max_position_embeddings": 4096,
    },
    "dflash": {
        **QWEN3,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 1,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 300, "target_layer_ids": [0, 1]},
    },
    "dspark": {
        **QWEN3,
        "architectures": ["DSparkDraftModel"],
        "num_hidden_layers": 1,
        "block_size": 7,
        "target_layer_ids": [0, 1],
    },
    "assistant": {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    },
    "unified-assistant": {
        "architectures": ["Gemma4UnifiedAssistantForCausalLM"],
        "model_type": "gemma4_unified_assistant",
        "text_config": {"model_type": "gemma4_unified_text"},
    },
    "draft-model": QWEN3,
}


def write_all(folder: Path) -> dict[str, Path]:
    """Write every stand-in below `folder`; return the folder of each."""
    found = {name: write_checkpoint(folder / name, config) for name, config in TARGETS.items()}
    return found | {
        f"draft-{name}": write_checkpoint(folder / f"draft-{name}", c, tokenizer=False) for name, c in DRAFTS.items()
    }
