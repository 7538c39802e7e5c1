"""Shapes of published models."""

from __future__ import annotations

from gpuscope.analyzers.planning.inputs.transformer import Model

PRESETS = {
    # Llama 2, arXiv:2307.09288; Llama 3, arXiv:2407.21783, table 3; their config.json.
    "llama-2-7b": Model(32, 4096, 32, 11008, 32000, 4096, gated=True),
    "llama-2-13b": Model(40, 5120, 40, 13824, 32000, 4096, gated=True),
    "llama-2-70b": Model(80, 8192, 64, 28672, 32000, 4096, kv_heads=8, gated=True),
    "llama-3-8b": Model(32, 4096, 32, 14336, 128256, 8192, kv_heads=8, gated=True),
    "llama-3-70b": Model(80, 8192, 64, 28672, 128256, 8192, kv_heads=8, gated=True),
    "llama-3.1-405b": Model(126, 16384, 128, 53248, 128256, 8192, kv_heads=8, gated=True),
    # Jiang et al., arXiv:2401.04088; the 8x22B's config.json.
    "mixtral-8x7b": Model(32, 4096, 32, 14336, 32000, 8192, kv_heads=8, gated=True, experts=8),
    "mixtral-8x22b": Model(56, 6144, 48, 16384, 32768, 8192, kv_heads=8, gated=True, experts=8),
    # DeepSeek-V3, arXiv:2412.19437, section 4.2; without the module that predicts a second token.
    "deepseek-v3": Model(
        61,
        7168,
        128,
        18432,
        129280,
        4096,
        head_width=128,
        gated=True,
        experts=256,
        experts_per_token=8,
        expert_ffn=2048,
        shared_experts=1,
        expert_hosts=4,
        dense_layers=3,
        q_rank=1536,
        kv_rank=512,
        rope_width=64,
        value_width=128,
    ),
    # Kimi K2, arXiv:2507.20534, table 2, and its config.json.
    "kimi-k2": Model(
        61,
        7168,
        64,
        18432,
        163840,
        4096,
        head_width=128,
        gated=True,
        experts=384,
        experts_per_token=8,
        expert_ffn=2048,
        shared_experts=1,
        dense_layers=1,
        q_rank=1536,
        kv_rank=512,
        rope_width=64,
        value_width=128,
    ),
    # Qwen3, arXiv:2505.09388, table 2, and their config.json.
    "qwen3-30b-a3b": Model(
        48,
        2048,
        32,
        6144,
        151936,
        4096,
        kv_heads=4,
        head_width=128,
        gated=True,
        experts=128,
        experts_per_token=8,
        expert_ffn=768,
    ),
    "qwen3-235b-a22b": Model(
        94,
        4096,
        64,
        12288,
        151936,
        4096,
        kv_heads=4,
        head_width=128,
        gated=True,
        experts=128,
        experts_per_token=8,
        expert_ffn=1536,
    ),
    # MPT, llm-foundry, scripts/train/yamls/pretrain.
    "mpt-3b": Model(32, 2560, 20, 10240, 50368, 2048, tied=True),
    "mpt-7b": Model(32, 4096, 32, 16384, 50368, 2048, tied=True),
    "mpt-13b": Model(40, 5120, 40, 20480, 50368, 2048, tied=True),
    "mpt-30b": Model(48, 7168, 56, 28672, 50368, 2048, tied=True),
    "mpt-70b": Model(80, 8192, 64, 32768, 50368, 2048, tied=True),
    # Nemotron-4 340B, arXiv:2406.11704, table 1: squared ReLU, so two matrices.
    "nemotron-4-340b": Model(96, 18432, 96, 73728, 256000, 4096, kv_heads=8),
    # Radford et al. 2019; Brown et al., arXiv:2005.14165, table 2.1. Their output layer is the embedding.
    "gpt2-xl": Model(48, 1600, 25, 6400, 50257, 1024, tied=True),
    "gpt3-175b": Model(96, 12288, 96, 49152, 50257, 2048, tied=True),
}
