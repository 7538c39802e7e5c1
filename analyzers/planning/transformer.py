"""A decoder-only transformer by its shape: parameters, FLOPs, and what a layer keeps for the backward pass."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuscope.errors import GpuscopeError, InputError, UsageError

ATTENTION_BACKWARD = 2.5
"""Backward by forward of fused attention: five multiplications where the forward pass has two (Dao, FlashAttention-2,
arXiv:2307.08691, section 2.3)."""


@dataclass(frozen=True)
class Model:
    """A transformer's shape. `gated`: three matrices in the feed-forward part (SwiGLU) instead of two. Its sizes are
    kept, because a search asks for them some hundred thousand times."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    """Heads of keys and values; 0 for as many as `heads`."""
    head_width: int = 0
    """Of one head; 0 for width by heads. With `kv_rank` its part without position."""
    gated: bool = False
    tied: bool = False
    """Whether the output layer is the embedding."""
    experts: int = 0
    experts_per_token: int = 2
    expert_ffn: int = 0
    """Of one expert; 0 for `ffn`."""
    shared_experts: int = 0
    """Experts that take every token, besides the routed ones."""
    expert_hosts: int = 0
    """Hosts at most to which a token's experts belong (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: 4); 0 for any."""
    dense_layers: int = 0
    """First layers that have one feed-forward part instead of experts."""
    q_rank: int = 0
    kv_rank: int = 0
    """Ranks of compressed queries and of compressed keys and values: multi-head latent attention (DeepSeek-V2,
    arXiv:2405.04434, section 2.1); 0 for ordinary attention."""
    rope_width: int = 0
    """Of a head's part with position, in latent attention."""
    value_width: int = 0
    """Of a head's values; 0 for `head_width`."""

    @property
    def head(self) -> int:
        """Width of a head, of its part without position."""
        return self.head_width or self.width // self.heads

    @cached_property
    def query(self) -> int:
        """Width of a head's queries and keys."""
        return self.head + self.rope_width

    @cached_property
    def value(self) -> int:
        """Width of a head's values."""
        return self.value_width or self.head

    @cached_property
    def kv(self) -> int:
        """Elements of a token's keys and values as attention reads them."""
        return (self.heads if self.kv_rank else self.kv_heads or self.heads) * (self.query + self.value)

    @cached_property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        out = self.heads * self.value * self.width
        if not self.kv_rank:
            return self.width * self.heads * self.query + self.width * self.kv + out
        queries = self.heads * self.query
        asked = self.q_rank * (self.width + queries) if self.q_rank else self.width * queries
        compressed = self.width * (self.kv_rank + self.rope_width)
        return asked + compressed + self.kv_rank * self.heads * (self.head + self.value) + out

    @cached_property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_width(self) -> int:
        """Width between an expert's matrices."""
        return self.expert_ffn or self.ffn

    @cached_property
    def expert(self) -> int:
        """Parameters of one expert."""
        return self._matrices * self.width * self.expert_width

    @cached_property
    def routed(self) -> float:
        """Parameters of a layer's routed experts, mean over all layers."""
        return self.experts * self.expert * self.moe_layers / self.layers

    @cached_property
    def layer(self) -> float:
        """Parameters of a layer without its routed experts, mean over all layers: attention, two norms, the
        feed-forward part or the router and shared experts."""
        dense = (self.layers - self.moe_layers) * self._matrices * self.width * self.ffn
        sparse = self.moe_layers * (self.width * self.experts + self.shared_experts * self.expert)
        return self.attention + 2 * self.width + (dense + sparse) / self.layers

    @cached_property
    def active(self) -> float:
        """Parameters of a layer that a token meets, mean over all layers."""
        return self.layer + self.experts_per_token * self.expert * self.moe_layers / self.layers

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters; biases, a few thousandths, are left out."""
        ends = self.embedding * (1 if self.tied else 2) + self.width
        return round(self.layers * (self.layer + self.routed)) + ends

    @property
    def attention_flops(self) -> float:
        """Of a token in a layer, forward, every token looking at every other: 2·s·heads·(query + value) widths."""
        return 2.0 * self.sequence * self.heads * (self.query + self.value)

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, nothing recomputed: 6 per active weight but the embedding, and for GPT
        6·layers·width·sequence for causal attention, of which the half above the diagonal is not computed
        (docs/definitions.md, MFU; Chowdhery et al., PaLM, arXiv:2204.02311, appendix B, counts both halves)."""
        return 6.0 * (self.layers * self.active + self.embedding) + 1.5 * self.layers * self.attention_flops

    def kept(self, *, selective: bool, operand: float = 2.0) -> float:
        """Bytes of a token that a layer keeps for the backward pass, mean over all layers.

        Norms' inputs, attention's input, queries, keys, values and output, the feed-forward part's input and what
        lies between its matrices: for GPT (ffn 4·width, no grouping, no dropout) 16·width, which in two bytes are 32 of
        the 34·s·b·h of Korthikanti et al., arXiv:2205.05198, equation 1; the other two are dropout masks. Experts also
        keep their tokens' copies, but not their results: a token's weights are applied before the last product. What
        only a matrix product needs again takes `operand` bytes, which is 1 in FP8 (DeepSeek-V3, section 3.3.3), the
        rest two. `selective`: without the outputs of norms and of experts'
        activation functions, which are cheap to compute again, and without what latent attention expands: what
        Megatron-Core's modules `layernorm`, `moe_act` and `mla_up_proj` do.
        """
        outputs, sparse = 0 if selective else 1, self.moe_layers / self.layers
        expanded = self.heads * self.query + self.kv
        if self.kv_rank:
            expanded = self.q_rank + self.kv_rank + self.rope_width + outputs * expanded
        experts = self.experts_per_token + self.shared_experts
        between = (1 - sparse) * self.ffn + sparse * experts * self.expert_width
        copies = sparse * self.experts_per_token * self.width
        plain = 2 * self.width + expanded + (self._matrices - 1) * between
        activated = between if outputs else (1 - sparse) * self.ffn
        operands = self.heads * self.value + outputs * 2 * self.width + activated + copies
        return 2 * plain + operand * operands

    @cached_property
    def _matrices(self) -> int:
        return 3 if self.gated else 2


# Shapes of published models.

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


# A file of named values into a dataclass: every key known, every value of its type, or the field named.

T = TypeVar("T")


def is_file(text: str) -> bool:
    """Whether an argument names a file of values, by its suffix."""
    return text.endswith((".toml", ".json"))


def read_values(path: Path) -> Mapping[str, Any]:
    """The values of a TOML or JSON file. Raises `InputError` where it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind, hint = ("JSON", "write one object") if path.suffix == ".json" else ("TOML", "write `name = value` lines")
        raise InputError(f"{path} is not {kind}: {error}", hint=hint) from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no named values", hint='write an object: {"layers": 32, …}')
    return found


def filled(kind: type[T], values: Mapping[str, Any], path: Path) -> T:
    """A `kind` from a file's values. Raises `InputError` for an unknown key, a missing one, or one of another type."""
    names = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            raise InputError(
                f"{path}: no field is called {key!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}",
            )
    missing = [
        name
        for name, field in names.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}", hint="docs/planning.md lists every field")
    for key, value in values.items():
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise InputError(f"{path}: {key} = {value} is no number")
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}", hint="docs/planning.md lists every field with its unit") from None


# A model by its spec: a preset, a preset with parts changed, all its parts, or a file (ours, or Hugging Face's).

LARGEST = 1 << 40
"""Of any size: beyond it a typing error, not a model."""

_REQUIRED = ("layers", "width", "heads", "ffn", "vocabulary", "sequence")
_HUGGING_FACE = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "sequence",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_width",
    "qk_nope_head_dim": "head_width",
    "tie_word_embeddings": "tied",
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn",
    "n_shared_experts": "shared_experts",
    "first_k_dense_replace": "dense_layers",
    "q_lora_rank": "q_rank",
    "kv_lora_rank": "kv_rank",
    "qk_rope_head_dim": "rope_width",
    "v_head_dim": "value_width",
}
"""Keys of a `config.json` of Transformers, and the part that each is."""
_GATED = ("silu", "swish", "swiglu", "gelu_pytorch_tanh")
"""Values of `hidden_act` with which Transformers' decoder models have three matrices."""


def model_named(text: str, sequence: int | None = None) -> Model:
    """A preset, `layers=32,width=4096,heads=32,ffn=11008,vocabulary=32000,sequence=4096,…`, a preset with some of these
    changed (`llama-3-8b,layers=16`), or a TOML or JSON file of the same parts or of Transformers' `config.json`.

    Raises `UsageError` or `InputError`, naming the part, for what is none of these or does not divide.
    """
    if is_file(text):
        path = Path(text)
        model = _from_file(path)
        return _checked(replace(model, sequence=sequence or model.sequence), InputError, f"{path}: ")
    return _checked(_from_words(text, sequence), UsageError, "")


def _from_words(text: str, sequence: int | None) -> Model:
    name, _, rest = text.partition(",") if "=" not in text.partition(",")[0] else ("", "", text)
    name = _preset(name)
    if name and name not in PRESETS:
        close = get_close_matches(name, PRESETS, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"no model is called {name!r}", hint=f"{meant}known: {', '.join(PRESETS)}; or layers=…,width=…, or a file"
        )
    known = {field.name for field in fields(Model)}
    values: dict[str, int | bool] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known or not (value.isascii() and value.isdecimal()):
            raise UsageError(f"{pair!r} is no part of a model", hint=f"NUMBERs of {', '.join(sorted(known))}")
        values[key] = bool(int(value)) if key in ("gated", "tied") else int(value)
    if sequence is not None:
        values["sequence"] = sequence
    base = asdict(PRESETS[name]) if name else {}
    try:
        return Model(**(base | values))
    except TypeError:
        missing = ", ".join(key for key in _REQUIRED if key not in values)
        raise UsageError(f"the model lacks {missing}", hint="write for instance ffn=16384") from None


def _preset(name: str) -> str:
    """The preset that people mean: Llama-3.1-8B is Llama-3-8B in shape, whoever published it and however tuned."""

    def plain(text: str) -> str:
        words = re.sub(r"(?<=llama[-_ ]3)\.[1-3]|meta|instruct|base|hf", "", text.casefold().rpartition("/")[2])
        return re.sub(r"[^a-z0-9]", "", words)

    return next((known for known in PRESETS if plain(known) == plain(name)), name) if name else name


def _from_file(path: Path) -> Model:
    values = read_values(path)
    if "num_hidden_layers" in values:
        values = _translated(values, path)
    return filled(Model, values, path)


def _translated(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found = {part: config[key] for key, part in _HUGGING_FACE.items() if config.get(key) is not None}
    if "intermediate_size" not in config and "width" in found:
        raise InputError(f"{path} lacks intermediate_size", hint="name the parts of the model in a file of its own")
    found["gated"] = str(config.get("hidden_act", "")) in _GATED
    if (config.get("n_group") or 1) > 1 and config.get("topk_group"):
        found["expert_hosts"] = config["topk_group"]
    if not config.get("kv_lora_rank"):
        for part in ("q_rank", "rope_width", "value_width"):
            found.pop(part, None)
    return found


def _checked(model: Model, error: type[GpuscopeError], where: str) -> Model:
    for field in fields(Model):
        value, least = getattr(model, field.name), 1 if field.name in _REQUIRED else 0
        if not least <= value <= LARGEST:
            raise error(f"{where}{field.name}={value} must be at least {least}")
    if not model.head_width and model.width % model.heads:
        raise error(f"{where}width={model.width} is no multiple of heads={model.heads}", hint="or give head_width")
    if model.heads % (model.kv_heads or model.heads):
        raise error(f"{where}heads={model.heads} is no multiple of kv_heads={model.kv_heads}")
    if model.experts and not 1 <= model.experts_per_token <= model.experts:
        raise error(f"{where}experts_per_token={model.experts_per_token} of experts={model.experts}")
    if model.dense_layers > model.layers:
        raise error(f"{where}dense_layers={model.dense_layers} of layers={model.layers}")
    return model
