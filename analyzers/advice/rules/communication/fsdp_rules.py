"""Fully sharded data parallel: prefetch, resharding, wrapping."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import GroupModules, KeepParameters, Prefetch
from gpuscope.report.schema.document import FindingEntry

DEPTHS = (2, 3)
"""Modules gathered ahead. FSDP2 already gathers one ahead: lists of one change nothing."""
GROUPS = (2, 4)
VERIFY = "record again: exposed communication of the all-gathers falls; `gpuscope diff BEFORE AFTER`"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Prefetch further ahead, keep parameters, wrap more per unit."""
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
    if keep is not None:
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
            ("latency", "bandwidth"),
            "FSDP2 `set_modules_to_forward_prefetch` with lists of two and more (one is what it does "
            "anyway), DeepSpeed `stage3_prefetch_bucket_size`",
        ),
        Knob(
            "fsdp_keep_parameters",
            ("latency", "bandwidth"),
            "`reshard_after_forward=False`, `SHARD_GRAD_OP`, ZeRO stage 2",
        ),
        Knob("fsdp_group_modules", ("latency", "bandwidth"), "one `fully_shard` for several layers"),
    ),
    propose,
)
