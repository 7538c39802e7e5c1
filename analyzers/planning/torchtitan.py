"""torchtitan's settings: TOML files up to 0.2; from 0.3 on options (`config/configs.py`) and the JSON that it saves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from gpuscope.analyzers.planning import deepspeed as hf
from gpuscope.analyzers.planning.deepspeed import Setup, Values
from gpuscope.analyzers.planning.plan_memory import (
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
from gpuscope.analyzers.planning.transformer import PRESETS, Model

REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
TENSOR, CONTEXT = "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"
PIPELINE, EXPERT = "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree"
RESHARD, SCHEDULE = "parallelism.fsdp_reshard_after_forward", "parallelism.pipeline_parallel_schedule"
PIPELINE_MICRO = "parallelism.pipeline_parallel_microbatch_size"
PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
LESS_FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
LESS_LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
LOCAL, BATCH, SEQUENCE = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
NO_GRAPHS, RECOMPUTE = "training.disable_cuda_graphs", "activation_checkpoint"
_MODE, _OPTION = f"{RECOMPUTE}.mode", f"{RECOMPUTE}.selective_ac_option"
_CONVERTERS, _ASYNC = "model.converters", "compile.enable_async_tensor_parallel"

SETTINGS = frozenset(
    (
        REPLICATE,
        SHARD,
        TENSOR,
        CONTEXT,
        PIPELINE,
        EXPERT,
        RESHARD,
        SCHEDULE,
        PIPELINE_MICRO,
        PER_STAGE,
        LESS_FIRST,
        LESS_LAST,
        LOCAL,
        BATCH,
        SEQUENCE,
        NO_GRAPHS,
        *(
            f"parallelism.{key}"
            for key in (
                "enable_fsdp_symm_mem",
                "enable_sequence_parallel",
                "spmd_backend",
                "module_fqns_per_model_part",
                "pipeline_parallel_schedule_csv",
                "context_parallel_load_balancer",
                "context_parallel_ptrr_mask_key",
            )
        ),
        *(
            f"training.{key}"
            for key in (
                "max_norm",
                "steps",
                "enable_cpu_offload",
                "dtype",
                "mixed_precision_param",
                "mixed_precision_reduce",
                "gc_freq",
                "gc_debug",
            )
        ),
    )
)
"""All of 0.3's parts `parallelism` and `training`."""
_RENAMED = {
    "training.batch_size": LOCAL,
    "training.data_parallel_replicate_degree": REPLICATE,
    "training.data_parallel_shard_degree": SHARD,
    "training.tensor_parallel_degree": TENSOR,
    "experimental.context_parallel_degree": CONTEXT,
    "experimental.pipeline_parallel_degree": PIPELINE,
    "experimental.pipeline_parallel_schedule": SCHEDULE,
    "experimental.enable_async_tensor_parallel": _ASYNC,
    "parallelism.enable_async_tensor_parallel": _ASYNC,
    "training.compile": "compile.enable",
    "parallelism.pipeline_parallel_split_points": "",
    "parallelism.context_parallel_rotate_method": "",
    "parallelism.disable_loss_parallel": "",
    "parallelism.enable_compiled_autograd": "",
    "parallelism.expert_tensor_parallel_degree": "",
}
"""Settings of earlier versions, and what 0.3 calls them; empty for those that it lacks."""
_PARTS = frozenset(
    (
        "job",
        "profiling",
        "profiler",
        "metrics",
        "model",
        "model_spec",
        "optimizer",
        "lr_scheduler",
        "checkpoint",
        "activation_checkpoint",
        "compile",
        "float8",
        "mx",
        "quantize",
        "comm",
        "memory_estimation",
        "fault_tolerance",
        "experimental",
        "validation",
        "validator",
        "debug",
        "override",
        "loss",
        "tokenizer",
        "dataloader",
        "dump_folder",
        "hf_assets_path",
    )
)


def model_of(values: Values) -> str:
    """The model that a file names, as `--model` takes it; empty where it names none."""
    part = "model_spec" if "model_spec.name" in values else "model"
    name, flavor = values.word(f"{part}.name"), values.word(f"{part}.flavor")
    return f"{name}-{flavor}" if name and flavor else ""


def read(values: Values, gpus: int, layers: int, experts: bool) -> Setup:
    """What a file of torchtitan asks for, of a model with so many layers on so many GPUs."""
    if values.path.suffix == ".toml":
        values.say("renamed", values.path.name, "torchtitan 0.3 reads no TOML: give its values as options")
    values.move(_RENAMED)
    sizes = {key: values.count(key) for key in (REPLICATE, CONTEXT, TENSOR, PIPELINE)}
    wanted, shard = values.count(SHARD, -1, -1), values.left(gpus, sizes)
    if wanted not in (-1, shard) and shard:
        values.say("contradiction", SHARD, f"{wanted} with the other degrees is not {gpus} GPUs: {shard} would be")
    tensor, context, pipeline = sizes[TENSOR], sizes[CONTEXT], sizes[PIPELINE]
    expert = _expert(values, shard * context * tensor, experts) if shard else 1
    _idle(values, sizes, shard)
    local = values.count(LOCAL, 8)
    micro = values.count(PIPELINE_MICRO) if pipeline > 1 else local
    if local % micro:
        values.say("contradiction", LOCAL, f"{local} is no multiple of {PIPELINE_MICRO} = {micro}")
    if local // micro < pipeline:
        values.say("slow", LOCAL, f"{local // micro} micro-batches leave some of {pipeline} stages idle")
    data = sizes[REPLICATE] * shard
    batch = _batch(values, local, data) if data else None
    recompute, repeated, open_ = _recomputation(values)
    precision = _precision(values, shard)
    values.unknown(SETTINGS, _PARTS)
    layout = None
    if shard and wanted in (-1, shard) and local % micro == 0:
        layout = Layout(
            data,
            tensor,
            pipeline,
            context,
            expert,
            _zero(values, shard * context, pipeline),
            micro,
            recompute,
            _chunks(values, pipeline, layers),
            shard=shard * context if sizes[REPLICATE] > 1 < shard * context else 0,
            repeated=repeated,
        )
    return Setup("torchtitan", layout, batch, precision, values.given(SEQUENCE), not open_, values.remarks)


def _expert(values: Values, ranks: int, experts: bool) -> int:
    size = values.count(EXPERT)
    if size > 1 and not experts:
        values.say("no_effect", EXPERT, "has no effect: the model has no experts")
        return 1
    if ranks % size:
        values.say("contradiction", EXPERT, f"{size} does not divide the {ranks} ranks of a stage's replica")
        return 1
    return size


def _batch(values: Values, local: int, data: int) -> int:
    batch = values.count(BATCH, -1, -1)
    if batch < 1:
        return local * data
    if batch % (local * data):
        made = max(batch // (local * data), 1) * local * data
        values.say(
            "contradiction",
            BATCH,
            f"{batch} is no multiple of local batch {local} x {data} data-parallel ranks; estimated with {made}",
        )
        return made
    return batch


def _zero(values: Values, ranks: int, pipeline: int) -> int:
    """`default` keeps weights gathered after the forward pass in pipelines alone (`distributed/fsdp.py`); there
    gradients are divided once, after the last micro-batch."""
    policy = values.word(RESHARD, "default", ("default", "always", "never"))
    if ranks == 1:
        return 0
    if policy == "always" and pipeline > 1:
        values.say("slow", RESHARD, "gathers the weights again for each micro-batch of the pipeline")
    if policy == "always" or (policy == "default" and pipeline == 1):
        return 3
    return 2 if pipeline == 1 else 1


def _chunks(values: Values, pipeline: int, layers: int) -> int:
    schedule = values.word(SCHEDULE, "1F1B")
    if pipeline == 1 or schedule.casefold() in ("1f1b", "gpipe"):
        return 1
    per = values.given(PER_STAGE)
    if per is None:
        return 2
    less = sum(values.count(key, 1, 0) for key in (LESS_FIRST, LESS_LAST))
    stages = -(-(layers + less) // per)
    if stages % pipeline:
        values.say("contradiction", PER_STAGE, f"makes {stages} stages, no multiple of {pipeline} ranks")
    return max(stages // pipeline, 1)


def layers_per_stage(layers: int, stages: int) -> dict[str, object] | None:
    """Settings with which torchtitan makes so many stages, chunks counted (`_get_pipeline_metadata`); None for none."""
    for first, last in ((1, 1), (0, 1), (0, 0)):
        per = -(-(layers + first + last) // stages)
        if -(-(layers + first + last) // per) == stages:
            return {PER_STAGE: per, LESS_FIRST: first, LESS_LAST: last}
    return None


def _idle(values: Values, sizes: dict[str, int], shard: int) -> None:
    if sizes[PIPELINE] == 1:
        values.idle([SCHEDULE, PIPELINE_MICRO, PER_STAGE], "without pipeline parallelism")
    if shard * sizes[CONTEXT] == 1:
        values.idle([RESHARD], "where no weights are divided")
    if sizes[TENSOR] == 1:
        values.idle([_ASYNC], "without tensor parallelism")
    elif values.flag(_ASYNC) and not values.flag("compile.enable"):
        values.say("contradiction", _ASYNC, "it needs compile.enable")


def _recomputation(values: Values) -> tuple[str, float, bool]:
    """What is recomputed, in which share of the layers, and whether that is open."""
    mode = values.word(_MODE, SELECTIVE, (NO, SELECTIVE, FULL, "memory_budget"))
    option = values.word(_OPTION, "op")
    if mode != SELECTIVE and _OPTION in values:
        values.say("no_effect", _OPTION, f"has no effect with mode {mode}")
    if mode == SELECTIVE and option.isdecimal() and int(option):
        return FULL, 1 / int(option), False
    if mode == SELECTIVE:  # by operators every second product is repeated
        return FULL, 0.5, False
    if mode == "memory_budget" or (_MODE not in values and f"{RECOMPUTE}.preserve_rng_state" in values):
        values.say("assumed", _MODE, "does not say what is recomputed: estimated with the least that fits")
        return NO, 1.0, True
    return mode, 1.0, False


def _precision(values: Values, shard: int) -> str:
    found = " ".join(values.words(_CONVERTERS))
    eight = re.search("float8|mx", found) is not None or values.flag("float8.enable_float8_linear")
    for part in ("float8", "quantize.linear.float8"):
        gathered = f"{part}.enable_fsdp_float8_all_gather"
        if not eight or shard == 1:
            values.idle([gathered], "where weights are not divided" if eight else "without FP8")
        if values.word(f"{part}.recipe_name") == "rowwise" and values.flag(gathered):
            values.say("contradiction", gathered, "FP8 all-gathers need tensorwise scaling, the recipe is rowwise")
    return "fp8" if eight else "bf16"


# A layout in the terms of torchtitan, Megatron-LM, DeepSpeed and FSDP2 through Accelerate.
#
# Options are those of torchtitan 0.3 (`torchtitan/config/configs.py`), of Megatron-LM's `arguments.py` (core 0.16), of
# DeepSpeed 0.19 and of Accelerate's configuration file (1.10). A framework that can't do a part of
# the layout, or its precision, is left out.

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
    if own.pipeline > 1 and layers_per_stage(model.layers, own.pipeline * own.chunks) is None:
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
        REPLICATE: replicas,
        SHARD: shard,
        TENSOR: own.tensor,
        CONTEXT: own.context,
        PIPELINE: own.pipeline,
        EXPERT: own.expert,
    }
    local = own.micro_batch * (micro_batches(own, batch) if own.pipeline > 1 else 1)
    if sharded:
        # Weights that stay after the forward pass are ZeRO-2; the optimizer and gradients are divided in both.
        pairs[RESHARD] = "always" if own.zero == 3 else "never"
    if own.pipeline > 1:
        pairs[SCHEDULE] = "Interleaved1F1B" if own.chunks > 1 else "1F1B"
        pairs[PIPELINE_MICRO] = own.micro_batch
        layers = layers_per_stage(model.layers, own.pipeline * own.chunks)
        pairs |= layers or {} if own.chunks > 1 else {}
    pairs |= {LOCAL: local, BATCH: batch, SEQUENCE: model.sequence}
    if own.pipeline > 1 or own.expert > 1:
        pairs[NO_GRAPHS] = ""  # its check demands that
    told = [
        f"--{key} {value}".rstrip()
        for key, value in pairs.items()
        if value != 1 or key == SHARD or not key.endswith("_degree")
    ]
    start = f"--module {start}" if start else ""
    return " ".join([*filter(None, [start]), *told, f"{RECOMPUTE}:{_CHECKPOINTED[own.again]}"])


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
        zero[hf.OVERLAP] = True
    if own.secondary:
        zero |= {hf.SECONDARY: own.secondary, **dict.fromkeys(hf.LOSSY, True)}
    if own.offload != NO:
        zero[hf.OPTIMIZER] = {"device": own.offload, "pin_memory": True}
        if own.offload == NVME:
            zero[hf.OPTIMIZER]["nvme_path"] = "/local_nvme"
    found: dict[str, Any] = {
        hf.BATCH: batch,
        hf.MICRO: own.micro_batch,
        hf.ACCUMULATION: micro_batches(own, batch),
        "bf16": {"enabled": True},
        hf.ZERO: zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "gradient_clipping": 1.0,
    }
    if own.gradients == 4:  # it takes the weights' type where nothing is said
        found |= {hf.SENT: "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    if own.context > 1:
        found[hf.CONTEXT] = own.context
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
