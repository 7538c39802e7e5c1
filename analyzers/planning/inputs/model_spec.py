"""A model by its spec: a preset, a preset with parts changed, all its parts, or a file (ours, or Hugging Face's)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpuscope.analyzers.planning.inputs.fields import filled, is_file, read_values
from gpuscope.analyzers.planning.inputs.model_presets import PRESETS
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.errors import GpuscopeError, InputError, UsageError

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
