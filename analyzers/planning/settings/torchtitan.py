"""torchtitan's settings: TOML files up to 0.2; from 0.3 on options (`config/configs.py`) and the JSON that it saves."""

from __future__ import annotations

import re

from gpuscope.analyzers.planning.layout import FULL, NO, SELECTIVE, Layout
from gpuscope.analyzers.planning.settings.values import Setup, Values

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
