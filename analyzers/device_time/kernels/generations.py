"""Generations of NVIDIA GPUs: by the model, or by what kernels were compiled for where that is not recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuscope import when_used
from gpuscope.averages import median
from gpuscope.hardware.device_peaks import MODELS, peaks_of
from gpuscope.hardware.link_rates import compute_capability
from gpuscope.schema.compute_section import Generation

_CAPABILITIES: tuple[tuple[int, Generation], ...] = (
    (100, "blackwell"),
    (90, "hopper"),
    (89, "ada"),
    (80, "ampere"),
    (75, "turing"),
    (70, "volta"),
)
_COMPILED_FOR: tuple[tuple[Generation, re.Pattern[str]], ...] = (
    ("blackwell", when_used.pattern(r"sm100_|cutlass\w*_sm100")),
    ("hopper", when_used.pattern(r"sm90_|nvjet_|cutlass\w*_sm90")),
    ("ada", when_used.pattern(r"sm89_")),
    ("ampere", when_used.pattern(r"ampere_|sm8[06]_|cutlass_80|s16816|s1688")),
    ("turing", when_used.pattern(r"turing_|sm75_|cutlass_75")),
    ("volta", when_used.pattern(r"volta_|sm70_|cutlass_70")),
)


def generation_of(model: str) -> Generation | None:
    """None for a model that is not known, or is no GPU with tensor cores."""
    capability = compute_capability(model) if model else None
    return next((name for least, name in _CAPABILITIES if capability is not None and capability >= least), None)


def compiled_for(kernels: Iterable[str]) -> Generation | None:
    """The newest that any of these kernels names; newer GPUs run kernels of older ones too."""
    names = list(kernels)
    return next((name for name, pattern in _COMPILED_FOR if any(pattern.search(text) for text in names)), None)


LIKELIEST: dict[Generation, str] = {
    "blackwell": "B200",
    "hopper": "H100",
    "ada": "L40S",
    "ampere": "A100",
    "turing": "T4",
    "volta": "V100",
}
"""Of each generation the model that most training jobs run on."""
_AMD = (
    (re.compile(r"gfx95\d"), "MI355X"),
    (re.compile(r"gfx90a"), "MI250X"),
    (re.compile(r"gfx942"), "MI300X"),
    (re.compile(r"^Cijk_|^hipLaunchKernel$|^hipModuleLaunchKernel$|ck_tile::|aiter"), "MI300X"),
)


def likeliest_model(names: Iterable[str]) -> str | None:
    """The model that a run most likely ran on, by the names of its kernels and calls; None where these don't tell."""
    texts = list(names)
    for pattern, model in _AMD:
        if any(pattern.search(text) for text in texts):
            return model
    generation = compiled_for(texts)
    return None if generation is None else LIKELIEST[generation]


def times_faster(generation: str, now: str, then: str) -> tuple[float, float, float] | None:
    """By how much the peak at one precision exceeds that at another, on the models of a generation whose peaks are
    known: least, median and most."""
    peaks = [peaks_of(model) for model in MODELS if generation_of(model) == generation]
    found = [own[then] / own[now] for own in peaks if now in own and then in own]
    return (min(found), median(found), max(found)) if found else None
