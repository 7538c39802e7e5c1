"""What is left where the network stays the limit after all else: fewer bytes, at a price in precision or convergence.

Nothing here is suggested with a predicted step alone: whether the model still learns decides, and no trace knows. Each
says what it saves in bytes, what the step would take by the replay, and what it risks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import Predicted, Refused, WireBytes
from gpuscope.report.schema.document import FindingEntry, Setting
from gpuscope.report.view import units

LEAST_SHARE = 0.1
"""Of the time: below it the network is not what limits the run."""
USED_WELL = 0.5
"""Bus bandwidth by the link's rate from which no setting of the network is likely to gain as much."""
MENDABLE = ("forced_setting", "slow_transport", "no_gpu_direct", "low_busbw", "group_across_hosts", "nccl_crossover",
            "fewer_channels", "degraded_link", "rails_crossed")  # fmt: skip
"""Findings to answer first: then the network is not the limit yet."""
PERIOD = 8
"""Steps between two averages of local SGD's replicas."""
_GRADIENTS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class _Saving:
    """A way to send less: the bytes left of those it concerns, and the operations that these are."""

    code: str
    action: str
    settings: dict[str, Setting]
    ops: tuple[str, ...]
    left: float
    risk: str


_SAVINGS = (
    _Saving(
        code="fp8_collectives", action="Gather parameters in FP8",
        settings={
            "fsdp2": python("torchao.float8.Float8LinearConfig", "enable_fsdp_float8_all_gather=True"),
            "megatron": config("--fp8-param-gather", ""),
        },
        ops=("all_gather",), left=0.5,
        risk="only for layers that multiply in FP8 (Hopper and later): their precision is FP8's",
    ),
    _Saving(
        code="quantized_collectives", action="Quantise what ZeRO sends (ZeRO++)",
        settings={"deepspeed": config("zero_quantized_gradients", "true, with zero_quantized_weights and "
                             "zero_hpz_partition_size = GPUs per host")},
        ops=("all_gather", "reduce_scatter", "all_reduce"), left=0.25,
        risk="gradients in 4 bits, weights in 8 on the wire: compare the loss curve; a second copy of the weights per "
        "host",
    ),
    _Saving(
        code="local_sgd",
        action=f"Average replicas every {PERIOD} steps instead of gradients in each (hierarchical local SGD)",
        settings={
            "ddp": python("torch.distributed.optim.PostLocalSGDOptimizer", f"PeriodicModelAverager(period={PERIOD}, "
                          "warmup_steps=…), with post_localSGD_hook: hosts average inside in every step"),
        },
        ops=_GRADIENTS, left=1 / PERIOD,
        risk="replicas drift apart between averages: another learning rate and a warm-up of usual steps, or a worse "
        "loss",
    ),
)  # fmt: skip


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Only over a network that is used well, and after everything that can be mended is."""
    if finding["share_frac"] < LEAST_SHARE or not _limit(case):
        return
    if any(one["code"] in MENDABLE for one in case.report["findings"]):
        return
    for saving in _SAVINGS:
        setting = in_dialect(case, saving.settings)
        nbytes = _bytes(case, saving.ops)
        if setting is not None and nbytes:
            yield _proposal(case, finding, saving, setting, nbytes)


def _limit(case: Case) -> bool:
    """Whether groups of this job talk over a network, and that reaches what it can."""
    rows = [row for row in case.report.get("bandwidth", ()) if row["tool"] == "trace"]
    transports = case.report["nccl"]["transports"] if "nccl" in case.report else []
    networked = any(one["same_node"] is False for one in transports)
    networked |= any("network port" in (row["link"] or "") for row in rows)
    reached = [row["efficiency_frac"] for row in rows if row["efficiency_frac"] is not None]
    return networked and (not reached or max(reached) >= USED_WELL)


def _bytes(case: Case, ops: tuple[str, ...]) -> int:
    """Bytes per steady step that these operations carry."""
    rows = [row for row in case.report.get("bandwidth", ()) if row["tool"] == "trace" and row["op"] in ops]
    recorded = len({step["step"] for step in case.report["steps"]}) or 1
    return sum(row["bytes"] * row["count"] for row in rows) // recorded


def _proposal(case: Case, finding: FindingEntry, saving: _Saving, setting: Setting, nbytes: int) -> Proposal:
    saved = f"it saves {units.size(round(nbytes * (1 - saving.left)))} of {units.size(nbytes)} per step"
    step = ""
    if set(saving.ops) & set(_GRADIENTS):
        told = case.predict((WireBytes(saving.left),))
        if isinstance(told, Predicted) and told.after < told.before:
            step = f"; by the replay {units.duration(told.before)} → {units.duration(told.after)} in the step's time"
    return Proposal(
        code=saving.code,
        action=saving.action,
        why=f"{cost(finding)}, over a network that carries what it can; {saved}{step}",
        setting=setting,
        risk=saving.risk,
        verify="the loss over as many samples as before, beside the time per step: a few thousand steps",
        outcome=Refused(f"{saved}{step}; what it costs in convergence decides, and no trace shows that"),
        alters_training=True,
    )


RULE = Rule(
    "network_limit",
    (
        Knob("fp8_collectives", ("bandwidth",), "torchao `enable_fsdp_float8_all_gather`, Megatron "
             "`--fp8-param-gather`: parameters gathered in FP8"),
        Knob("quantized_collectives", ("bandwidth",), "DeepSpeed ZeRO++: `zero_quantized_gradients`, "
             "`zero_quantized_weights`, `zero_hpz_partition_size`"),
        Knob("local_sgd", ("bandwidth",), "DDP `PostLocalSGDOptimizer` with `post_localSGD_hook`"),
    ),
    propose,
)  # fmt: skip
