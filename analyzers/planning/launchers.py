"""A layout in the terms of torchtitan, Megatron-LM, DeepSpeed and FSDP2 through Accelerate.

Options are those of torchtitan 0.3 (`torchtitan/config/configs.py`), of Megatron-LM's `arguments.py` (core 0.16), of
DeepSpeed 0.19 and of Accelerate's configuration file (1.10). A framework that can't do a part of
the layout, or its precision, is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from gpuscope.analyzers.planning.inputs.model_presets import PRESETS
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import (
    FULL,
    NO,
    NVME,
    SELECTIVE,
    SQRT,
    ULYSSES,
    Layout,
    Stages,
    micro_batches,
)
from gpuscope.analyzers.planning.settings import accelerate as hf
from gpuscope.analyzers.planning.settings import deepspeed as ds
from gpuscope.analyzers.planning.settings import torchtitan as titan

_REGISTERED = {
    ("llama-3-8b", "bf16"): "llama3 --config llama3_8b",
    ("llama-3-70b", "bf16"): "llama3 --config llama3_70b",
    ("llama-3.1-405b", "fp8"): "llama3 --config llama3_405b",
    ("deepseek-v3", "bf16"): "deepseek_v3 --config deepseek_v3_671b",
    ("deepseek-v3", "fp8"): "deepseek_v3 --config deepseek_v3_671b_float8",
}
"""Modules and configurations that torchtitan brings; FP8 is a matter of these, not of an option."""
FRAMEWORKS = ("torchtitan", "megatron", "deepspeed", "accelerate")
_CHECKPOINTED = {0.0: NO, 0.5: SELECTIVE, 1.0: FULL}
"""What torchtitan calls recomputation of such a share: every layer, or every second product of each (`SelectiveAC`)."""
_SHARDING = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}


def commands(model: Model, layout: Layout, stages: Stages, batch: int, precision: str = "bf16") -> dict[str, str]:
    """Options by framework, or a configuration file whole."""
    found: dict[str, Callable[[], str]] = {
        "torchtitan": lambda: _torchtitan(model, layout, batch, precision),
        "megatron": lambda: _megatron(model, layout, stages, batch, precision),
        "deepspeed": lambda: _deepspeed(layout, batch),
        "accelerate": lambda: _accelerate(layout, precision),
    }
    return {name: told() for name, told in found.items() if runs(name, model, layout, precision)}


def runs(framework: str, model: Model, own: Layout, precision: str) -> bool:
    """Whether a framework can do a layout."""
    can: Callable[[Model, Layout, str], bool] = {
        "torchtitan": _torchtitan_runs,
        "megatron": _megatron_runs,
        "deepspeed": _deepspeed_runs,
        "accelerate": _accelerate_runs,
    }[framework]
    return can(model, own, precision)


def _torchtitan_runs(model: Model, own: Layout, precision: str) -> bool:
    if own.offload != NO or own.secondary or own.exchange == ULYSSES or own.overlap or precision == "fp4":
        return False
    if own.recompute in (SELECTIVE, SQRT) or own.again not in _CHECKPOINTED or own.gradients != 4:
        return False
    if own.pipeline > 1 and titan.layers_per_stage(model.layers, own.pipeline * own.chunks) is None:
        return False
    return precision == "bf16" or bool(_registered(model, precision))


@cache
def _registered(model: Model, precision: str) -> str:
    shapes = {name: replace(shape, sequence=model.sequence) for name, shape in PRESETS.items()}
    return next((_REGISTERED.get((name, precision), "") for name, shape in shapes.items() if shape == model), "")


def _megatron_runs(_: Model, own: Layout, __: str) -> bool:
    return not (own.secondary or own.offload == NVME or own.dual or own.contradictory)


def _deepspeed_runs(_: Model, own: Layout, precision: str) -> bool:
    # Its own tensor and pipeline parallelism need the model to be written for them, and what is recomputed is the
    # model's choice: `gradient_checkpointing_enable()` of Transformers repeats whole layers.
    if own.tensor > 1 or own.pipeline > 1 or own.expert > 1 or precision != "bf16":
        return False
    if (own.context > 1 and own.exchange != ULYSSES) or own.recompute in (SELECTIVE, SQRT) or 0 < own.again < 1:
        return False
    return own.shards == own.replicas  # MiCS left in 0.19


def _accelerate_runs(_: Model, own: Layout, precision: str) -> bool:
    alone = own.tensor == own.pipeline == own.expert == own.context == 1 and own.offload == NO and not own.secondary
    whole = own.recompute in (NO, FULL) and own.again in (0, 1)
    return alone and whole and own.zero >= 2 and own.gradients == 4 and precision != "fp4"


def _torchtitan(model: Model, own: Layout, batch: int, precision: str) -> str:
    start = _registered(model, precision)
    sharded = own.zero > 0
    replicas = own.replicas // own.shards if sharded else own.data
    shard = max(own.shards // own.context, 1) if sharded else 1
    pairs: dict[str, object] = {
        titan.REPLICATE: replicas,
        titan.SHARD: shard,
        titan.TENSOR: own.tensor,
        titan.CONTEXT: own.context,
        titan.PIPELINE: own.pipeline,
        titan.EXPERT: own.expert,
    }
    local = own.micro_batch * (micro_batches(own, batch) if own.pipeline > 1 else 1)
    if sharded:
        # Weights that stay after the forward pass are ZeRO-2; the optimizer and gradients are divided in both.
        pairs[titan.RESHARD] = "always" if own.zero == 3 else "never"
    if own.pipeline > 1:
        pairs[titan.SCHEDULE] = "Interleaved1F1B" if own.chunks > 1 else "1F1B"
        pairs[titan.PIPELINE_MICRO] = own.micro_batch
        layers = titan.layers_per_stage(model.layers, own.pipeline * own.chunks)
        pairs |= layers or {} if own.chunks > 1 else {}
    pairs |= {titan.LOCAL: local, titan.BATCH: batch, titan.SEQUENCE: model.sequence}
    if own.pipeline > 1 or own.expert > 1:
        pairs[titan.NO_GRAPHS] = ""  # its check demands that
    told = [
        f"--{key} {value}".rstrip()
        for key, value in pairs.items()
        if value != 1 or key == titan.SHARD or not key.endswith("_degree")
    ]
    start = f"--module {start}" if start else ""
    return " ".join([*filter(None, [start]), *told, f"{titan.RECOMPUTE}:{_CHECKPOINTED[own.again]}"])


def _megatron(model: Model, own: Layout, stages: Stages, batch: int, precision: str) -> str:
    found = [
        f"--tensor-model-parallel-size {own.tensor}",
        f"--pipeline-model-parallel-size {own.pipeline}",
        f"--micro-batch-size {own.micro_batch}",
        f"--global-batch-size {batch}",
        f"--seq-length {model.sequence}",
        "--bf16",
    ]
    if own.tensor > 1:
        found.append("--sequence-parallel --tp-comm-overlap")
    if precision != "bf16":
        found.append("--fp8-format hybrid" if precision == "fp8" else "--fp4-format e2m1")
    if own.context > 1:
        found.append(
            f"--context-parallel-size {own.context} --cp-comm-type {'a2a' if own.exchange == ULYSSES else 'p2p'}"
        )
    if own.expert > 1:
        found.append(f"--expert-model-parallel-size {own.expert} --expert-tensor-parallel-size 1")
        found.append("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep")
    if own.gradients == 2:
        found.append("--grad-reduce-in-bf16")
    if own.overlap:
        found.append("--overlap-moe-expert-parallel-comm --delay-wgrad-compute")
    found += _megatron_stages(own, stages)
    if own.zero == 1 and own.shards == own.replicas:
        found.append("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
    elif own.zero:
        # Its check demands this checkpoint format (validate_args).
        found.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {_SHARDING[own.zero]}")
        found.append("--use-distributed-optimizer --ckpt-format fsdp_dtensor")
        if own.shards < own.replicas:
            found.append(f"--num-distributed-optimizer-instances {own.replicas // own.shards}")
    else:
        found.append("--overlap-grad-reduce")
    if own.recompute in (FULL, SQRT):
        # Layers of each model chunk that are computed again (block), or of each group of which one input is kept.
        count = math.ceil(own.repeated * max(stages.chunks)) if own.again < 1 else 1
        count = count if own.recompute == FULL else math.ceil(math.sqrt(stages.most))
        method = "block" if own.again < 1 else "uniform"
        found.append(f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {count}")
    elif own.recompute == SELECTIVE:
        # `mlp` would compute a whole feed-forward part again.
        modules = "layernorm" + (" moe_act" if model.experts else "") + (" mla_up_proj" if model.kv_rank else "")
        found.append(f"--recompute-granularity selective --recompute-modules {modules}")
    if own.offload != NO:
        found.append("--optimizer-cpu-offload")
    return " ".join(found)


def _megatron_stages(own: Layout, stages: Stages) -> list[str]:
    if own.pipeline == 1:
        return []
    if not stages.even:
        # E: the embedding, t: a layer, L: the output layer and the loss; | between model chunks.
        chunks = [f"t*{layers}" if layers > 1 else "t" * layers for layers in stages.chunks]
        return [f"--pipeline-model-parallel-layout 'E{'|'.join(chunks)}L'"]
    return [f"--num-layers-per-virtual-pipeline-stage {stages.chunks[0]}"] if own.chunks > 1 else []


def _deepspeed(own: Layout, batch: int) -> str:
    zero: dict[str, Any] = {"stage": own.zero}
    if own.zero:
        zero[ds.OVERLAP] = True
    if own.secondary:
        zero |= {ds.SECONDARY: own.secondary, **dict.fromkeys(ds.LOSSY, True)}
    if own.offload != NO:
        zero[ds.OPTIMIZER] = {"device": own.offload, "pin_memory": True}
        if own.offload == NVME:
            zero[ds.OPTIMIZER]["nvme_path"] = "/local_nvme"
    found: dict[str, Any] = {
        ds.BATCH: batch,
        ds.MICRO: own.micro_batch,
        ds.ACCUMULATION: micro_batches(own, batch),
        "bf16": {"enabled": True},
        ds.ZERO: zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "gradient_clipping": 1.0,
    }
    if own.gradients == 4:  # it takes the weights' type where nothing is said
        found |= {ds.SENT: "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    if own.context > 1:
        found[ds.CONTEXT] = own.context
    return json.dumps(found)


def _accelerate(own: Layout, precision: str) -> str:
    """Accelerate's configuration file; weights are divided after the backward pass (ZeRO-2) or after each pass (3). The
    batch and accumulation are the script's: the file refuses unknown keys."""
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        hf.KIND: "FSDP",
        hf.PRECISION: precision,
        hf.PROCESSES: own.data,
        "fsdp_config": {
            hf.VERSION: 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            hf.RESHARD: own.zero == 3,
            hf.CHECKPOINTING: own.recompute == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    if own.shards < own.replicas:
        found[hf.MESH] = {hf.REPLICATE: own.replicas // own.shards, hf.SHARD: own.shards}
    return json.dumps(found)
