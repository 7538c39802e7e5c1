"""Fully sharded data parallel: prefetch, resharding, wrapping, and sharding within a host alone (HSDP).

Names and defaults after torch 2.13: FSDP1 has `backward_prefetch=BACKWARD_PRE` (one module ahead),
`forward_prefetch=False` (its gathers are on a stream of their own all the same, as far ahead as the host is) and
`limit_all_gathers=True`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import UNDIVIDED, config, cost, in_dialect, python, seen_alone
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import GroupModules, KeepParameters, Prefetch, Refused, RemovedSyncs
from gpuscope.analyzers.host_time.blocking_sites import site
from gpuscope.analyzers.replay.rewrites.sharded_parameters import NOT_GATHERED_AGAIN
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry
from gpuscope.words import units

DEPTHS = (2, 3)
"""Modules gathered ahead. FSDP2 already gathers one ahead: lists of one change nothing."""
GROUPS = (2, 4)
LIMITER = "FullyShardedDataParallel.rate_limiter"
"""The range in which FSDP1 waits before it gathers further ahead (torch/distributed/fsdp/_runtime_utils.py)."""
VERIFY = "record again: exposed communication of the all-gathers falls; `gpuscope diff BEFORE AFTER`"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: FSDP1's options; else prefetch further ahead, keep parameters, wrap more per unit, shard less."""
    if finding["code"] == "limited_gathers":
        yield _unlimited(case, finding)
    elif finding["code"] == "late_gathers":
        yield _before_backward(finding)
    else:
        yield from seen_alone(case, finding, _on_request(case, finding))
        if finding["code"] in ("latency", "bandwidth"):
            yield from _within_hosts(case, finding)


def _unlimited(case: Case, finding: FindingEntry) -> Proposal:
    places = [place for rank in case.host_calls for place in rank["blocking_calls"]
              if LIMITER in (place["operator"], place["within"])]  # fmt: skip
    sites = tuple(dict.fromkeys(site(one["copy"] or one["call"], one["operator"], one["within"]) for one in places))
    return Proposal(
        code="limit_all_gathers",
        action="Let the host gather as far ahead as it can",
        why=f"{cost(finding)}; with limit_all_gathers FSDP1 lets no more than two gathers be under way, and the host "
        "waits for the oldest",
        setting=python("FullyShardedDataParallel.limit_all_gathers", "False"),
        risk="parameters of several modules are unsharded at once: peak memory rises, at worst the allocator retries",
        verify="record again: no FullyShardedDataParallel.rate_limiter; torch.cuda.memory_stats() without retries",
        changes=(RemovedSyncs(sites=sites),),
        outcome=None if sites else Refused("the call that waits within the limiter is not recorded"),
    )


def _before_backward(finding: FindingEntry) -> Proposal:
    return Proposal(
        code="backward_prefetch",
        action="Gather the next module's parameters before the backward pass of this one",
        why=f"{cost(finding)}; FSDP1's default issues them before the gradients of the current module are computed",
        setting=python("FullyShardedDataParallel.backward_prefetch", "BackwardPrefetch.BACKWARD_PRE"),
        risk="holds one further module's parameters and gradients unsharded",
        verify=VERIFY,
        changes=(Prefetch(1),),
    )


def _within_hosts(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Hybrid sharding, where the gathers of a job with several GPUs per host cross the network."""
    rows = _crossing(case)
    setting = in_dialect(
        case,
        {
            "fsdp2": python("fully_shard.mesh", 'init_device_mesh("cuda", (hosts, GPUs per host), mesh_dim_names='
                            '("replicate", "shard"))'),
            "fsdp": python("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.HYBRID_SHARD"),
            "deepspeed": config("zero_optimization.zero_hpz_partition_size", "GPUs per host"),
            "megatron": config("--num-distributed-optimizer-instances", "the number of hosts"),
        },
    )  # fmt: skip
    if not rows or setting is None:
        return
    steps = len({step["step"] for step in case.report["steps"]}) or 1
    nbytes = sum(row["bytes"] * row["count"] for row in rows) // steps
    yield Proposal(
        code="hybrid_shard",
        action="Shard within each host and replicate across hosts (HSDP)",
        why=f"{cost(finding)}; {units.size(nbytes)} of parameters are gathered across hosts per step and would stay "
        "within them; between hosts only each rank's shard of the gradients is reduced",
        setting=setting,
        risk="each host holds the whole model: parameters and optimiser states take as many times the memory as there "
        "are hosts; checkpoints are resharded by DCP on loading",
        verify="record again: all-gathers in groups of one host, an all-reduce of a shard's gradients between hosts",
        outcome=Refused("how fast the gathers are within a host is not in this trace: measure it with `gpuscope bench "
                        "collectives` on one host"),
    )  # fmt: skip


def _crossing(case: Case) -> list[BandwidthEntry]:
    """All-gathers of groups that span hosts with several ranks each."""
    transports = case.report["nccl"]["transports"] if "nccl" in case.report else []
    networked = any(one["same_node"] is False for one in transports)
    nodes = {(one["size"], one["nodes"]) for one in case.report["nccl"]["communicators"]} if networked else set()
    spread = {size for size, count in nodes if count is not None and 1 < count < size}
    return [
        row for row in case.report.get("bandwidth", ())
        if row["tool"] == "trace" and row["op"] == "all_gather"
        and (row["group_size"] in spread or "network port" in (row["link"] or ""))
    ]  # fmt: skip


def _kept(case: Case) -> bool:
    """Whether the backward pass gathers nothing: they are kept already."""
    outcome = case.predict((KeepParameters(),))
    return isinstance(outcome, Refused) and outcome.code == NOT_GATHERED_AGAIN


def _on_request(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    for depth in DEPTHS:
        setting = in_dialect(
            case,
            {
                "fsdp2": python("FSDPModule.set_modules_to_forward_prefetch", f"the next {depth} modules"),
                "deepspeed": config("zero_optimization.stage3_prefetch_bucket_size", str(int(5e7) * depth)),
            },
        )
        if setting is not None:
            yield Proposal(
                code="fsdp_prefetch",
                action=f"Gather parameters {depth} modules ahead, in forward and in backward "
                "(set_modules_to_backward_prefetch too)",
                why=f"{cost(finding)}; an all-gather issued earlier hides behind more compute",
                setting=setting,
                risk=f"holds up to {depth} further modules' parameters unsharded",
                verify=VERIFY,
                changes=(Prefetch(depth),),
            )
    keep = in_dialect(
        case,
        {
            "fsdp2": python("fully_shard.reshard_after_forward", "False"),
            "fsdp": python("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.SHARD_GRAD_OP"),
            "deepspeed": config("zero_optimization.stage", "2"),
        },
    )
    if keep is not None and not _kept(case):
        yield Proposal(
            code="fsdp_keep_parameters",
            action="Keep parameters gathered between forward and backward",
            why=f"{cost(finding)}; the backward pass then gathers nothing",
            setting=keep,
            risk="every rank holds the whole model's parameters in the compute type during the step",
            verify="record again: half as many all-gathers; watch peak memory",
            changes=(KeepParameters(),),
        )
    for count in GROUPS:
        setting = in_dialect(case, {"fsdp2": python("fully_shard", f"one call per {count} layers: fully_shard([…])")})
        if setting is not None:
            yield Proposal(
                code="fsdp_group_modules",
                action=f"Shard {count} layers as one unit",
                why=f"{cost(finding)}; larger messages pay the fixed cost less often",
                setting=setting,
                risk=f"{count} layers' parameters are unsharded at once",
                verify="record again: fewer, larger all-gathers",
                changes=(GroupModules(count),),
            )


RULE = Rule(
    "fsdp",
    (
        Knob(
            "fsdp_prefetch",
            ("latency", "bandwidth", UNDIVIDED),
            "FSDP2 `set_modules_to_forward_prefetch` with lists of two and more (one is what it does "
            "anyway), DeepSpeed `stage3_prefetch_bucket_size`",
        ),
        Knob(
            "fsdp_keep_parameters",
            ("latency", "bandwidth", UNDIVIDED),
            "`reshard_after_forward=False`, `SHARD_GRAD_OP`, ZeRO stage 2",
        ),
        Knob("fsdp_group_modules", ("latency", "bandwidth", UNDIVIDED), "one `fully_shard` for several layers"),
        Knob(
            "hybrid_shard",
            ("latency", "bandwidth"),
            "`fully_shard` with a two-dimensional mesh, FSDP1 `ShardingStrategy.HYBRID_SHARD`, DeepSpeed "
            "`zero_hpz_partition_size`, Megatron `--num-distributed-optimizer-instances`: where gathers cross hosts",
        ),
        Knob("limit_all_gathers", ("limited_gathers",), "FSDP1 `limit_all_gathers=False`, where its limiter is seen"),
        Knob("backward_prefetch", ("late_gathers",), "FSDP1 `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`"),
    ),
    propose,
    place=90,
)
