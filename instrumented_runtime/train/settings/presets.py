"""Named model sizes, from one for a laptop to ones that fill an H100."""

from __future__ import annotations

from typing import Any

Sections = dict[str, dict[str, Any]]

_GPT2_VOCABULARY = 50_304  # 50,257 rounded up to a multiple of 128, for the tensor cores
_ON_GPU: dict[str, Any] = {"precision": "bf16"}


def _gpt(layers: int, width: int, heads: int, sequence: int, batch: int, experts: int = 0) -> Sections:
    return {
        "model": {
            "layers": layers,
            "width": width,
            "heads": heads,
            "vocabulary": _GPT2_VOCABULARY,
            "experts": experts,
        },
        "data": {"sequence": sequence, "batch": batch},
        "train": dict(_ON_GPU),
    }


PRESETS: dict[str, Sections] = {
    "tiny": {},
    "tiny-moe": {"model": {"experts": 4}},
    "small": _gpt(12, 768, 12, 1024, 16),  # 124 M parameters without the head
    "medium": _gpt(24, 1024, 16, 1024, 16),  # 350 M
    "large": _gpt(36, 1280, 20, 1024, 16),  # 770 M
    "h100": _gpt(24, 2048, 16, 2048, 8),  # 1.4 G: about 22 GB of weights and Adam, 40 GB of activations
    "h100-moe": _gpt(12, 1024, 16, 2048, 8, experts=8),
}
