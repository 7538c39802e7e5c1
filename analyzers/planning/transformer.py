"""A decoder-only transformer by its shape: parameters and FLOPs. Presets from the models' published configurations."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gpuscope.errors import UsageError


@dataclass(frozen=True)
class Model:
    """A transformer's shape. `gated`: three matrices in the feed-forward part (SwiGLU) instead of two."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    """Heads of keys and values; 0 for as many as `heads`."""
    gated: bool = False
    tied: bool = False
    """Whether the output layer is the embedding."""
    experts: int = 0
    experts_per_token: int = 2

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.width // self.heads * (self.kv_heads or self.heads)

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention: queries and output, keys and values."""
        return 2 * self.width * self.width + 2 * self.width * self.kv_width

    @property
    def expert(self) -> int:
        """Parameters of one feed-forward part."""
        return (3 if self.gated else 2) * self.width * self.ffn

    @property
    def layer(self) -> int:
        """Parameters of a layer without its experts: attention, two norms, the router or the feed-forward part."""
        feed = self.width * self.experts if self.experts else self.expert
        return self.attention + 2 * self.width + feed

    @property
    def layer_experts(self) -> int:
        """Parameters of a layer's experts."""
        return self.experts * self.expert

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters; biases, a few thousandths, are left out."""
        ends = self.embedding * (1 if self.tied else 2) + self.width
        return self.layers * (self.layer + self.layer_experts) + ends

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, nothing recomputed: 6 per active weight but the embedding, and 12·layers·width·sequence
        for attention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B)."""
        active = self.layers * (self.layer + self.experts_per_token * self.expert * bool(self.experts))
        return 6.0 * (active + self.embedding) + 12.0 * self.layers * self.width * self.sequence


PRESETS = {
    # Llama 2, arXiv:2307.09288; Llama 3, arXiv:2407.21783, table 3; their config.json.
    "llama-2-7b": Model(32, 4096, 32, 11008, 32000, 4096, gated=True),
    "llama-2-70b": Model(80, 8192, 64, 28672, 32000, 4096, kv_heads=8, gated=True),
    "llama-3-8b": Model(32, 4096, 32, 14336, 128256, 8192, kv_heads=8, gated=True),
    "llama-3-70b": Model(80, 8192, 64, 28672, 128256, 8192, kv_heads=8, gated=True),
    "llama-3.1-405b": Model(126, 16384, 128, 53248, 128256, 8192, kv_heads=8, gated=True),
    # Jiang et al., arXiv:2401.04088.
    "mixtral-8x7b": Model(32, 4096, 32, 14336, 32000, 8192, kv_heads=8, gated=True, experts=8),
    # Radford et al. 2019; Brown et al., arXiv:2005.14165, table 2.1. Their output layer is the embedding.
    "gpt2-xl": Model(48, 1600, 25, 6400, 50257, 1024, tied=True),
    "gpt3-175b": Model(96, 12288, 96, 49152, 50257, 2048, tied=True),
}


def model_named(text: str, sequence: int | None = None) -> Model:
    """A preset, or `layers=32,width=4096,heads=32,ffn=11008,vocabulary=32000,sequence=4096,…`, or a preset with some of
    these changed (`llama-3-8b,layers=16`). Raises `UsageError` for what is neither or does not divide."""
    name, _, rest = text.partition(",") if "=" not in text.partition(",")[0] else ("", "", text)
    if name and name not in PRESETS:
        raise UsageError(f"no model is called {name!r}", hint=f"known: {', '.join(PRESETS)}; or layers=…,width=…")
    values: dict[str, int | bool] = {}
    known = {field.name for field in fields(Model)}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known or not value.isdecimal():
            raise UsageError(f"{pair!r} is no part of a model", hint=f"NUMBERs of {', '.join(sorted(known))}")
        values[key] = bool(int(value)) if key in ("gated", "tied") else int(value)
    if sequence is not None:
        values["sequence"] = sequence
    base = {field.name: getattr(PRESETS[name], field.name) for field in fields(Model)} if name else {}
    try:
        model = Model(**(base | values))
    except TypeError:
        needed = ("layers", "width", "heads", "ffn", "vocabulary", "sequence")
        missing = ", ".join(key for key in needed if key not in values)
        raise UsageError(f"the model lacks {missing}", hint="write for instance ffn=16384") from None
    return _checked(model)


def _checked(model: Model) -> Model:
    numbers = (model.layers, model.width, model.heads, model.ffn, model.vocabulary, model.sequence)
    if min(numbers) < 1 or model.width % model.heads or model.heads % (model.kv_heads or model.heads):
        raise UsageError("the model's sizes must be at least 1, width a multiple of heads, heads one of kv_heads")
    if model.experts and model.experts < model.experts_per_token:
        raise UsageError(f"{model.experts_per_token} experts per token of {model.experts}")
    return model
