"""Operators that activation checkpointing runs again in the backward pass: their FLOPs are no model FLOPs."""

from __future__ import annotations

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.trace import Trace

_NODE = when_used.pattern(r"^autograd::engine::evaluate_function: ")
_AGAIN = when_used.pattern(r"^autograd::engine::evaluate_function: \w*[Cc]heckpoint\w*Backward")
"""Nodes that run the forward pass of a part again (torch/utils/checkpoint.py `CheckpointFunction`, Megatron's)."""
_OWN = when_used.pattern(r"^autograd::engine::evaluate_function: \w+Backward\d+$")
"""Nodes of PyTorch's own operators: their formulas call no composite operator…"""
_COMPOSITE = when_used.pattern(
    r"^aten::(linear|matmul|einsum|conv(_transpose)?[123]d|convolution|scaled_dot_product_attention)$"
)
"""… so where one runs in them, unpacking a saved tensor ran the forward pass again (`checkpoint` without reentry)."""
_MARKS = when_used.pattern(r"CheckpointFunction|torch/utils/checkpoint\.py|checkpoint_wrapper\.py")


def recomputed(trace: Trace, operators: Times) -> Mask:
    """Which of these host events run again what the forward pass ran, shape as `operators`."""
    host, names = trace["host_events"], trace.names
    found = np.zeros(len(operators), np.bool_)
    nodes = names.matching(lambda name: _NODE.match(name) is not None)[host["name"]]
    if not len(operators) or not nodes.any():
        return found
    thread, start = host["thread"][operators], host["start"][operators]
    node = innermost(host, nodes, thread, start)
    inside = np.flatnonzero(node >= 0)
    name_of_node = host["name"][node[inside]]
    found[inside] = names.matching(lambda name: _AGAIN.match(name) is not None)[name_of_node]
    own = inside[names.matching(lambda name: _OWN.match(name) is not None)[name_of_node]]
    composite = innermost(
        host, names.matching(lambda name: _COMPOSITE.match(name) is not None)[host["name"]], thread[own], start[own]
    )
    within = composite >= 0
    found[own] = within & (host["start"][np.where(within, composite, 0)] >= host["start"][node[own]])
    return found


def is_checkpointed(trace: Trace) -> bool:
    """Whether a name tells that activations are computed again."""
    return bool(trace.names.matching(lambda name: _MARKS.search(name) is not None).any())
