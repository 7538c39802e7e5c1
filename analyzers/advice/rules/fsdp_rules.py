"""Fully sharded data parallel: prefetch, resharding, wrapping, and sharding within a host alone (HSDP).

Names and defaults after torch 2.13: FSDP1 has `backward_prefetch=BACKWARD_PRE` (one module ahead),
`forward_prefetch=False` (its gathers are on a stream of their own all the same, as far ahead as the host is) and
`limit_all_gathers=True`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, config, in_dialect, of_anyone, on_cpu
from gpuscope.analyzers.advice.rules.bucket_rules import GRADIENTS
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.host_time.blocking_sites import site
from gpuscope.analyzers.host_time.fsdp_options import LIMITER
from gpuscope.analyzers.what_if_changes import (
    NOT_GATHERED_AGAIN,
    GroupModules,
    KeepParameters,
    Prefetch,
    Refused,
    RemovedSyncs,
)
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry
from gpuscope.trace.frameworks import SERVERS, WRAPPERS, parallelism_of
from gpuscope.when_used import dataclass
from gpuscope.words import units

DEPTHS = (2, 3)
"""Modules gathered ahead. FSDP2 already gathers one ahead: lists of one change nothing."""
GROUPS = (2, 4)
VERIFY = "record again: exposed communication of the all-gathers falls; `gpuscope diff BEFORE AFTER`"


_COSTS = ("latency", "bandwidth", UNDIVIDED)


@dataclass(frozen=True)
class GatheredAhead(Suggestion):
    """All-gathers issued earlier."""

    code = "fsdp_prefetch"
    answers = _COSTS
    sets = """FSDP2 `set_modules_to_forward_prefetch` with lists of two and more (one is what it does anyway), \
FSDP1 `forward_prefetch=True`, DeepSpeed `stage3_prefetch_bucket_size`"""
    action = "Gather parameters {ahead} ahead, in forward and backward"
    why = "{cost}; an all-gather issued earlier hides behind more compute"
    risk = "holds parameters of up to {ahead} more unsharded"
    verify = VERIFY

    modules: int

    @property
    def ahead(self) -> str:
        return units.plural(self.modules, "module")


@dataclass(frozen=True)
class KeptParameters(Suggestion):
    """No resharding after the forward pass."""

    code = "fsdp_keep_parameters"
    answers = _COSTS
    sets = "`reshard_after_forward=False`, `SHARD_GRAD_OP`, ZeRO stage 2"
    action = "Keep parameters gathered between forward and backward"
    why = "{cost}; the backward pass then gathers nothing"
    risk = "every rank holds the whole model's parameters in the compute type during the step"
    verify = "record again: half as many all-gathers; watch peak memory"


@dataclass(frozen=True)
class LargerUnits(Suggestion):
    """Several layers sharded as one."""

    code = "fsdp_group_modules"
    answers = _COSTS
    sets = "one `fully_shard` for several layers"
    action = "Shard {layers} layers as one unit"
    why = "{cost}; larger messages pay the fixed cost less often"
    risk = "{layers} layers' parameters are unsharded at once"
    verify = "record again: fewer, larger all-gathers"

    layers: int


@dataclass(frozen=True)
class FewerGathers(Suggestion):
    """Small all-gathers of shards put together, in the words of whoever may have issued them."""

    code = "small_gathers"
    answers = ("latency",)
    sets = """ZeRO-3 `stage3_param_persistence_threshold` and `stage3_prefetch_bucket_size`, FSDP1 `auto_wrap_policy` \
with larger units, Megatron `--overlap-param-gather`; all of these where no framework left a mark"""
    action = "Gather small parameters at once and ahead of their use"
    why = "{cost}; each step has {gathers} of {size} each{awaited}"
    why_not = "which parameters travel together is not in the trace: how many gathers are left only a run shows"
    grounds = "{gathers} per step, of {size} each{awaited}"
    risk = "what is gathered at once, early or for good is held unsharded by every rank"
    verify = "record again: fewer, larger all-gathers, and compute beside them"

    per_step: float
    bytes: int
    blocks: bool
    """Whether the host waits for each."""

    @property
    def gathers(self) -> str:
        return f"{self.per_step:,.0f} all-gathers"

    @property
    def size(self) -> str:
        return units.memory(self.bytes)

    @property
    def awaited(self) -> str:
        return ", and the host waits for each before it launches what follows" if self.blocks else ""


@dataclass(frozen=True)
class HybridShard(Suggestion):
    """Hybrid sharding, where the gathers of a job with several GPUs per host cross the network."""

    code = "hybrid_shard"
    answers = ("latency", "bandwidth")
    sets = """`fully_shard` with a two-dimensional mesh, FSDP1 `ShardingStrategy.HYBRID_SHARD`, DeepSpeed \
`zero_hpz_partition_size`, Megatron `--num-distributed-optimizer-instances`: where gathers cross hosts"""
    action = "Shard within each host and replicate across hosts (HSDP)"
    why = (
        "{cost}; each step gathers {gathered} of parameters across hosts, which would then stay within a host; between "
        "hosts each rank only reduces its shard of the gradients"
    )
    why_not = (
        "this trace does not show how fast all-gathers are within a host: measure it with `gpuscope bench collectives` "
        "on one host"
    )
    risk = (
        "each host holds the whole model, so that parameters and optimizer states need as many times the memory as "
        "there are hosts; DCP reshards older checkpoints on loading"
    )
    verify = "record again: all-gathers in groups of one host, an all-reduce of a shard's gradients between hosts"

    bytes_per_step: int
    """Of all-gathers across hosts."""

    @property
    def gathered(self) -> str:
        return units.memory(self.bytes_per_step)


@dataclass(frozen=True)
class UnlimitedGathers(Suggestion):
    """FSDP1's rate limiter switched off."""

    code = "limit_all_gathers"
    answers = ("limited_gathers",)
    sets = "FSDP1 `limit_all_gathers=False`, where its limiter is seen"
    action = "Let the host issue all-gathers as early as it can"
    why = (
        "{cost}; with limit_all_gathers=True, FSDP1 allows two all-gathers at a time, and the host waits for the older "
        "one before it issues another"
    )
    risk = (
        "several modules' parameters can be unsharded at once: peak memory rises, and the allocator may have to retry"
    )
    verify = "record again: no FullyShardedDataParallel.rate_limiter; torch.cuda.memory_stats() without retries"


@dataclass(frozen=True)
class GatheredBeforeBackward(Suggestion):
    """FSDP1's backward prefetch."""

    code = "backward_prefetch"
    answers = ("late_gathers",)
    sets = "FSDP1 `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`"
    action = "Gather the next module's parameters before the backward pass of this one"
    why = "{cost}; FSDP1's default issues them before the gradients of the current module are computed"
    risk = "holds one further module's parameters and gradients unsharded"
    verify = VERIFY


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: FSDP1's options; else prefetch further ahead, keep parameters, wrap more per unit, shard less."""
    if finding["code"] == "limited_gathers":
        places = (place for rank in case.host_calls for place in rank["blocking_calls"])
        limiters = [one for one in places if LIMITER in (one["operator"], one["within"])]
        sites = tuple(
            dict.fromkeys(
                site(one["copy"] or one["call"], one["operator"], one["within"], one.get("behind")) for one in limiters
            )
        )
        unknown = None if sites else Refused("the call that waits within the limiter is not recorded")
        setting = torch_settings.LIMIT_ALL_GATHERS.to("False")
        yield Proposal(finding, UnlimitedGathers(), setting, (RemovedSyncs(sites=sites),), unknown)
    elif finding["code"] == "late_gathers":
        setting = torch_settings.BACKWARD_PREFETCH.to("BackwardPrefetch.BACKWARD_PRE")
        yield Proposal(finding, GatheredBeforeBackward(), setting, (Prefetch(1),))
    else:
        yield from _of_anyone(case, finding)
        if finding["code"] in FewerGathers.answers:
            yield from _small_gathers(case, finding)
        yield from _on_request(case, finding)
        if finding["code"] in ("latency", "bandwidth"):
            yield from _within_hosts(case, finding)


SMALL_GATHER = 4 << 20
"""Bytes up to which the fixed cost of a gather between two or more GPUs is a noticeable part of it on any link."""
MANY_GATHERS = 8
"""Per step: fewer are of layers, not of single parameters."""
ANY_FRAMEWORK = config(
    "whoever gathers the shards",
    "DeepSpeed ZeRO-3: stage3_param_persistence_threshold and stage3_prefetch_bucket_size larger, or FSDP2: one "
    "fully_shard for several layers and set_modules_to_forward_prefetch, or FSDP1: auto_wrap_policy with larger units "
    "and forward_prefetch=True, or Megatron: --overlap-param-gather",
)


def _small_gathers(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Where most of the messages are small all-gathers that may be of parameters: of tensor, sequence and expert
    parallelism they are of activations, in servers too."""
    rows = [
        row for row in case.report["collectives"] if row["op"] == "all_gather" and not _of_activations(row["group"])
    ]
    count, spent = sum(row["count"] for row in rows), sum(row["dur_ns"] for row in rows)
    steps = len({step["step"] for step in case.report["steps"] if step["step"] is not None}) or 1
    size = sum(row["bytes"] or 0 for row in rows) // max(count, 1)
    most = 2 * spent > sum(row["dur_ns"] for row in case.report["collectives"])
    if count < MANY_GATHERS * steps or not 0 < size <= SMALL_GATHER or not most or SERVERS & set(case.frameworks):
        return
    elements = max(10 * int(str(other_settings.PERSISTENCE_THRESHOLD.default)), size)
    setting = in_dialect(
        case,
        {
            "deepspeed": other_settings.PERSISTENCE_THRESHOLD.to(str(elements)),
            "fsdp": torch_settings.AUTO_WRAP_POLICY.to(
                "functools.partial(size_based_auto_wrap_policy, min_num_params=100_000_000)"
            ),
            "megatron": other_settings.OVERLAP_PARAM_GATHER.to(""),
        },
    )
    if setting is None:
        if WRAPPERS & set(case.frameworks):  # FSDP2 has units and prefetch of its own below; DDP gathers no parameters
            return
        setting = ANY_FRAMEWORK
    places = (place for rank in case.host_calls for place in rank["blocking_calls"])
    waits = sum(place["count"] for place in places if place.get("behind") == "all_gather")
    record = FewerGathers(count / steps, size, 2 * waits > count)
    yield Proposal(finding, record, setting)


@dataclass(frozen=True)
class GatheredAheadByAnyone(GatheredAhead):
    """The same where no framework left a mark: whoever gathers the parameters."""

    action = "Gather parameters {ahead} ahead of their use ({dialects})"

    dialects: str


@dataclass(frozen=True)
class LargerUnitsOfAnyone(LargerUnits):
    """The same where no framework left a mark."""

    action = "Gather and scatter {layers} layers as one unit ({dialects})"

    dialects: str


def _of_anyone(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Where gathers return in each step and no framework left a mark: earlier ones, and larger units."""
    if not _count(case, "all_gather") or any(_of_activations(row["group"]) for row in case.report["collectives"]):
        return
    prefetch_size = other_settings.PREFETCH_BUCKET_SIZE
    for depth in (1, *DEPTHS):
        names = {
            "fsdp2": torch_settings.FORWARD_PREFETCH.to(f"the next {depth}"),
            "deepspeed": prefetch_size.to(str(depth * int(str(prefetch_size.default)))),
        }
        if depth == 1:
            names["fsdp"] = torch_settings.FORWARD_PREFETCH_1.to("True")
            names["megatron"] = other_settings.OVERLAP_PARAM_GATHER.to("")
        setting = of_anyone(
            case, "parameters gathered ahead", names, f"async_op=True {units.plural(depth, 'layer')} ahead"
        )
        if setting is not None and not isinstance(case.estimate((Prefetch(depth),)), Refused):
            yield Proposal(finding, GatheredAheadByAnyone(depth, setting["value"]), setting, (Prefetch(depth),))
    for count in GROUPS:
        names = {"fsdp2": torch_settings.FULLY_SHARD.to(f"once for {count} layers")}
        setting = of_anyone(case, "larger units", names, f"one collective for {count} layers")
        if setting is not None and not isinstance(case.estimate((GroupModules(count),)), Refused):
            yield Proposal(finding, LargerUnitsOfAnyone(count, setting["value"]), setting, (GroupModules(count),))


def _of_activations(group: str | None) -> bool:
    return parallelism_of(group or "") in ("tp", "sp", "ep", "cp", "pp")


def _on_request(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    prefetch_size = other_settings.PREFETCH_BUCKET_SIZE
    if (setting := in_dialect(case, {"fsdp": torch_settings.FORWARD_PREFETCH_1.to("True")})) is not None:
        yield Proposal(finding, GatheredAhead(1), setting, (Prefetch(1),))
    for depth in DEPTHS:
        names = {"deepspeed": prefetch_size.to(str(depth * int(str(prefetch_size.default))))}
        if not on_cpu(case):  # gloo's all-gathers block the thread that issues them, ahead too
            names["fsdp2"] = torch_settings.FORWARD_PREFETCH.to(
                f"the next {depth} modules; set_modules_to_backward_prefetch the {depth} before"
            )
        setting = in_dialect(case, names)
        if setting is not None:
            yield Proposal(finding, GatheredAhead(depth), setting, (Prefetch(depth),))
    keep = in_dialect(
        case,
        {
            "fsdp2": torch_settings.RESHARD_AFTER_FORWARD.to("False"),
            "fsdp": torch_settings.SHARDING_STRATEGY.to("ShardingStrategy.SHARD_GRAD_OP"),
            "deepspeed": other_settings.STAGE.to("2"),
        },
    )
    if keep is not None and not _kept(case):
        yield Proposal(finding, KeptParameters(), keep, (KeepParameters(),))
    for count in (count for count in GROUPS if count < _layers(case)):
        setting = in_dialect(
            case, {"fsdp2": torch_settings.FULLY_SHARD.to(f"one call per {count} layers: fully_shard([…])")}
        )
        if setting is not None:
            yield Proposal(finding, LargerUnits(count), setting, (GroupModules(count),))


def _layers(case: Case) -> float:
    """Units that are sharded besides the root, by the reductions of a recorded step (all-reduces where the backend has
    no reduce-scatter); no limit where none are seen. One unit of all layers would leave nothing to compute while it is
    gathered."""
    reduced = next((count for op in reversed(GRADIENTS) if (count := _count(case, op))), 0)
    steps = len({step["step"] for step in case.report["steps"]})
    return reduced / steps - 1 if reduced and steps else float("inf")


def _count(case: Case, op: str) -> int:
    return sum(row["count"] for row in case.report["collectives"] if row["op"] == op)


def _within_hosts(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    rows = _crossing(case)
    setting = in_dialect(
        case,
        {
            "fsdp2": torch_settings.SHARD_MESH.to(
                'init_device_mesh("cuda", (hosts, GPUs per host), mesh_dim_names=("replicate", "shard"))'
            ),
            "fsdp": torch_settings.SHARDING_STRATEGY.to("ShardingStrategy.HYBRID_SHARD"),
            "deepspeed": other_settings.HPZ_PARTITION_SIZE.to("GPUs per host"),
            "megatron": other_settings.OPTIMIZER_INSTANCES.to("the number of hosts"),
        },
    )
    if rows and setting is not None:
        steps = len({step["step"] for step in case.report["steps"]}) or 1
        yield Proposal(finding, HybridShard(sum(row["bytes"] * row["count"] for row in rows) // steps), setting)


def _crossing(case: Case) -> list[BandwidthEntry]:
    """All-gathers of groups that span hosts with several ranks each."""
    transports = case.report["nccl"]["transports"] if "nccl" in case.report else []
    networked = any(one["same_node"] is False for one in transports)
    nodes = {(one["size"], one["nodes"]) for one in case.report["nccl"]["communicators"]} if networked else set()
    spread = {size for size, count in nodes if count is not None and 1 < count < size}
    return [
        row
        for row in case.report.get("bandwidth", ())
        if row["tool"] == "trace"
        and row["op"] == "all_gather"
        and (row["group_size"] in spread or "network port" in (row["link"] or ""))
    ]


def _kept(case: Case) -> bool:
    """Whether the backward pass gathers nothing: they are kept already."""
    outcome = case.predict((KeepParameters(),))
    return isinstance(outcome, Refused) and outcome.code == NOT_GATHERED_AGAIN


RULE = Rule(
    "fsdp",
    (
        GatheredAhead,
        GatheredAheadByAnyone,
        KeptParameters,
        LargerUnits,
        LargerUnitsOfAnyone,
        FewerGathers,
        HybridShard,
        UnlimitedGathers,
        GatheredBeforeBackward,
    ),
    propose,
    programs=("pytorch", "native"),
    place=90,
)
