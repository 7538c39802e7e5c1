"""Operators of which a trace keeps the shapes of their inputs: those whose work or traffic follows from them."""

from __future__ import annotations

from functools import cache

from gpuscope import when_used

NCCL_RANGES = ("nccl:", "rccl:")
"""How PyTorch names the ranges around its calls of NCCL."""
_COMPUTES = when_used.pattern(
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|_addmm_activation|_int_mm|_?(scaled_)?(grouped_)?mm(_v2)?"
    r"|_?convolution(_backward)?(_overrideable)?|_?scaled_dot_product\w*|_(flash|efficient|cudnn)_attention\w*)(\.\w+)?$"
    r"|flash_attn(_\d)?::\w+$|FlashAttn(Varlen)?Func$|xformers::efficient_attention_forward\w*$"
    r"|torch::autograd::AccumulateGrad$|[A-Z]\w*Backward\d*$"
)
_MAPS = (
    r"add|sub|rsub|mul|div|neg|pow|sqrt|rsqrt|exp|log|sin|cos|tanh|sigmoid|silu|relu|gelu|elu|leaky_relu|hardtanh|hardswish"
    r"|mish|softplus|where|clamp|clamp_min|clamp_max|threshold|abs|reciprocal|lerp|addcmul|addcdiv|erf|square|masked_fill"
    r"|(threshold|gelu|silu|sigmoid|tanh|elu|leaky_relu|hardtanh|hardswish|mish|softplus)_backward"
)
_MOVES = when_used.pattern(
    rf"aten::(({_MAPS})_?|copy_|fill_|zero_|sum|mean|_(log_)?softmax(_backward_data)?|native_(layer|group)_norm(_backward)?"
    r"|_fused_rms_norm(_backward)?|(cudnn|miopen|native)_batch_norm(_backward)?)(\.\w+)?$"
)


@cache
def computes(name: str) -> bool:
    """Whether an operator's floating-point operations, or its gradient's size, follows from its inputs; nodes of the
    backward pass too, whose inputs are gradients: how much each rank has to compute."""
    return _COMPUTES.match(name) is not None


@cache
def moves(name: str) -> bool:
    """Whether an operator does little but move data: the bytes of its inputs and outputs are its work."""
    return _MOVES.match(name) is not None


def is_shaped(name: str) -> bool:
    """Whether the shapes of an operator's inputs are of use; those of a call of NCCL are its message's size."""
    return computes(name) or moves(name) or name.startswith(NCCL_RANGES)
