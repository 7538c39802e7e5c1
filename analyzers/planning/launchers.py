"""A layout in the terms of torchtitan, Megatron-LM, DeepSpeed and FSDP2 through Accelerate.

Options are those of torchtitan 0.3 (`torchtitan/config/configs.py`), of Megatron-LM's `arguments.py` (core 0.16), of
DeepSpeed 0.19 and of Accelerate's configuration file (1.10). A framework that can't do a part of
the layout, or its precision, is left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
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
    ("llama-3-8b", "bf16"): "llama3 --config llama3_8b", ("llama-3-70b", "bf16"): "llama3 --config llama3_70b",
    ("llama-3.1-405b", "fp8"): "llama3 --config llama3_405b",
    ("deepseek-v3", "bf16"): "deepseek_v3 --config deepseek_v3_671b",
    ("deepseek-v3", "fp8"): "deepseek_v3 --config deepseek_v3_671b_float8",
}  # fmt: skip
"""Modules and configurations that torchtitan brings; FP8 is a matter of these, not of an option."""
_SHARDING = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}


def commands(model: Model, layout: Layout, stages: Stages, batch: int, precision: str = "bf16") -> dict[str, str]:
    """Options by framework, or a configuration file whole."""
    found = {
        "torchtitan": _torchtitan(model, layout, batch, precision),
        "megatron": _megatron(model, layout, stages, batch, precision),
        "deepspeed": _deepspeed(layout, batch, precision),
        "accelerate": _accelerate(layout, precision),
    }
    return {name: text for name, text in found.items() if text}


def _torchtitan(model: Model, own: Layout, batch: int, precision: str) -> str:
    if own.offload != NO or own.secondary or own.exchange == ULYSSES or own.overlap or precision == "fp4":
        return ""
    # It checkpoints every layer, or every second product of each (`SelectiveAC`), and keeps gradients in fp32.
    mode = {0.0: NO, 0.5: SELECTIVE, 1.0: FULL}.get(own.again)
    if own.recompute in (SELECTIVE, SQRT) or mode is None or own.gradients != 4:
        return ""
    shapes = {name: replace(shape, sequence=model.sequence) for name, shape in PRESETS.items()}
    name = next((name for name, shape in shapes.items() if shape == model), "")
    start = f"--module {_REGISTERED[name, precision]}" if (name, precision) in _REGISTERED else ""
    if not start and precision != "bf16":
        return ""
    sharded = own.zero > 0
    replicas = own.replicas // own.shards if sharded else own.data
    shard = max(own.shards // own.context, 1) if sharded else 1
    pairs: dict[str, object] = {
        titan.REPLICATE: replicas, titan.SHARD: shard, titan.TENSOR: own.tensor, titan.CONTEXT: own.context,
        titan.PIPELINE: own.pipeline, titan.EXPERT: own.expert,
    }  # fmt: skip
    local = own.micro_batch * (micro_batches(own, batch) if own.pipeline > 1 else 1)
    if sharded:
        # Weights that stay after the forward pass are ZeRO-2; the optimizer and gradients are divided in both.
        pairs[titan.RESHARD] = "always" if own.zero == 3 else "never"
    if own.pipeline > 1:
        pairs[titan.SCHEDULE] = "Interleaved1F1B" if own.chunks > 1 else "1F1B"
        pairs[titan.PIPELINE_MICRO] = own.micro_batch
        layers = titan.layers_per_stage(model.layers, own.pipeline * own.chunks)
        if layers is None:
            return ""
        pairs |= layers if own.chunks > 1 else {}
    pairs |= {titan.LOCAL: local, titan.BATCH: batch, titan.SEQUENCE: model.sequence}
    if own.pipeline > 1 or own.expert > 1:
        pairs[titan.NO_GRAPHS] = ""  # its check demands that
    told = [f"--{key} {value}".rstrip() for key, value in pairs.items() if value != 1 or key == titan.SHARD
            or not key.endswith("_degree")]  # fmt: skip
    return " ".join([*filter(None, [start]), *told, f"{titan.RECOMPUTE}:{mode}"])


def _megatron(model: Model, own: Layout, stages: Stages, batch: int, precision: str) -> str:
    if own.secondary or own.offload == NVME or own.dual:
        return ""
    found = [
        f"--tensor-model-parallel-size {own.tensor}", f"--pipeline-model-parallel-size {own.pipeline}",
        f"--micro-batch-size {own.micro_batch}", f"--global-batch-size {batch}", f"--seq-length {model.sequence}",
        "--bf16",
    ]  # fmt: skip
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


def _deepspeed(own: Layout, batch: int, precision: str) -> str:
    # Its own tensor and pipeline parallelism need the model to be written for them, and what is recomputed is the
    # model's choice: `gradient_checkpointing_enable()` of Transformers repeats whole layers.
    if own.tensor > 1 or own.pipeline > 1 or own.expert > 1 or precision != "bf16":
        return ""
    if (own.context > 1 and own.exchange != ULYSSES) or own.recompute in (SELECTIVE, SQRT) or 0 < own.again < 1:
        return ""
    if own.shards < own.replicas:  # MiCS left in 0.19
        return ""
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
        ds.BATCH: batch, ds.MICRO: own.micro_batch, ds.ACCUMULATION: micro_batches(own, batch),
        "bf16": {"enabled": True}, ds.ZERO: zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "gradient_clipping": 1.0,
    }  # fmt: skip
    if own.gradients == 4:  # it takes the weights' type where nothing is said
        found |= {ds.SENT: "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    if own.context > 1:
        found[ds.CONTEXT] = own.context
    return json.dumps(found)


def _accelerate(own: Layout, precision: str) -> str:
    """Accelerate's configuration file; weights are divided after the backward pass (ZeRO-2) or after each pass (3). The
    batch and accumulation are the script's: the file refuses unknown keys."""
    alone = own.tensor == own.pipeline == own.expert == own.context == 1 and own.offload == NO and not own.secondary
    if (
        not alone
        or own.zero < 2
        or own.gradients != 4
        or own.recompute in (SELECTIVE, SQRT)
        or 0 < own.again < 1
        or precision == "fp4"
    ):
        return ""
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", hf.KIND: "FSDP", hf.PRECISION: precision,
        hf.PROCESSES: own.data,
        "fsdp_config": {
            hf.VERSION: 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            hf.RESHARD: own.zero == 3, hf.CHECKPOINTING: own.recompute == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }  # fmt: skip
    if own.shards < own.replicas:
        found[hf.MESH] = {hf.REPLICATE: own.replicas // own.shards, hf.SHARD: own.shards}
    return json.dumps(found)
