"""Reading a kernel's name: its own identifier, its namespaces, its words.

Profilers write one kernel in three ways: demangled (`void ns::f<T>(int)`, with anonymous namespaces as
`(anonymous namespace)::` in Kineto and `<unnamed>::` in nsys), mangled (`_ZN2ns1fE…`, as ROCm often does), and
as a bare symbol (`triton_poi_fused_add_0`, `attn_fwd.kd`).
"""

from __future__ import annotations

import re
from functools import cache

from gpuscope import when_used

_ANONYMOUS = when_used.pattern(r"\(anonymous namespace\)::|<unnamed>::|\{[^}]*\}::")
_SUFFIX = when_used.pattern(r"(\s*\[clone [^\]]*\]|\.kd)+$")
_CAMEL = when_used.pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LENGTH = when_used.pattern(r"\d+")
_NOT_WORD = when_used.pattern(r"[^a-z0-9]+")


@cache
def qualified_name(kernel: str) -> str:
    """The function's identifier with its namespaces: `void ns::f<T>(int)` → `ns::f`."""
    if kernel.startswith("_Z"):
        return _demangled(kernel)
    name = _ANONYMOUS.sub("", _SUFFIX.sub("", kernel))
    kept: list[str] = []
    depth = 0
    for position, char in enumerate(name):
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= name[position - 1] != "-"
        elif char == "(" and not depth:
            break
        elif not depth:
            kept.append(char)
    # What stands before the last blank is the return type of a template.
    return "".join(kept).strip().rpartition(" ")[2]


def base_name(kernel: str) -> str:
    """The function's own identifier: `void ns::f<T>(int)` → `f`."""
    return qualified_name(kernel).rpartition("::")[2]


@cache
def words(name: str) -> str:
    """The words of a name in lower case, each between underscores: `aten::_softmax`, `LayerNorm` → `_aten_softmax_`,
    `_layer_norm_`, so that `_lamb_` is found in «LAMBStage1» and not in «lambda»."""
    return "_" + _NOT_WORD.sub("_", _CAMEL.sub("_", name).lower()).strip("_") + "_"


def _demangled(symbol: str) -> str:
    """The qualified name of an Itanium symbol, up to the first template arguments (`_ZN2ns1fIiEEvv` → `ns::f`)."""
    head = re.match(r"_Z(N?)K?", symbol)
    assert head is not None  # the caller has seen `_Z`
    position, parts = head.end(), []
    while (length := _LENGTH.match(symbol, position)) is not None:
        position = length.end() + int(length[0])
        parts.append(symbol[length.end() : position])
        if not head[1]:
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or symbol
