"""Fewer bytes on the wire: gradients reduced in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import in_dialect, on_cpu, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import deepspeed_settings, megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.changes import Refused, WireBytes
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming.frameworks import WRAPPERS
from gpuscope.when_used import dataclass
from gpuscope.words import units

HALF = 0.5
"""16 bits for 32; the replay refuses where gradients are not of 32 bits."""
RANK = 32
THIN = 0.1
"""Of the bytes: matrices shrink to a few hundredths at that rank, vectors and small tensors are sent whole."""
STILL = 0.2
"""Share of the time in exposed transfers from which halving them may not be enough."""
POWER_SGD = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
BY_HAND = python("torch.distributed.all_reduce of gradients", "gradient.to(torch.bfloat16), and copied back behind it")
"""Where the program reduces them itself."""


@dataclass(frozen=True)
class WireBits(Suggestion):
    """Gradients sent in 16 bits."""

    code = "wire_bytes"
    answers = ("bandwidth",)
    sets = """bf16 or fp16 reduction: a DDP hook, FSDP2 `reduce_dtype`, DeepSpeed `communication_data_type`, Megatron \
`--grad-reduce-in-bf16`"""
    action = "Reduce gradients in 16 bits instead of 32"
    why = "{cost}; half the bytes take half that part of the time"
    risk = "rounds every gradient, and each partial sum, to 16 bits: compare the loss curve; fp16 can overflow"
    verify = "record again: bytes of the gradient collectives halve; watch the loss for a few hundred steps"
    alters_training = True


@dataclass(frozen=True)
class PowerSgd(Suggestion):
    """Gradients of matrices as two thin ones: what it saves in bytes is known, what it costs is not."""

    code = "power_sgd"
    answers = ("bandwidth",)
    sets = "DDP's `powerSGD_hook` with `matrix_approximation_rank`"
    action = "If 16 bits are not enough, send gradients of matrices as two of rank {approximation_rank} (PowerSGD)"
    why = "{cost}; of a matrix of n by m only {approximation_rank} (n + m) numbers are sent"
    why_not = (
        "about a tenth of the bytes is sent{at_best}; what orthogonalising costs and how the loss fares only a run "
        "shows"
    )
    risk = "what is left out is added to the next step's gradient, and the loss may still differ: compare the curve"
    verify = "record again after start_powerSGD_iter steps: bytes of the gradient collectives; the loss curve"
    alters_training = True

    approximation_rank: int
    least_step_ns: int | None
    """The step if compressing cost nothing."""

    @property
    def at_best(self) -> str:
        return (
            "" if self.least_step_ns is None else f": the step would take {units.duration(self.least_step_ns)} at best"
        )


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """16-bit gradients by the framework's own means, or the program's."""
    setting = in_dialect(case, names(on_cpu(case)))
    if setting is None:
        if case.program == "pytorch" and not WRAPPERS & set(case.frameworks):
            outcome = case.predict((WireBytes(HALF),))
            if not isinstance(outcome, Refused):
                yield Proposal(finding, WireBits(), BY_HAND, (WireBytes(HALF),))
        return
    yield Proposal(finding, WireBits(), setting, (WireBytes(HALF),))
    if setting["name"].startswith("DistributedDataParallel") and finding["share_frac"] >= STILL:
        outcome = case.predict((WireBytes(THIN),))
        state = f"process_group=None, matrix_approximation_rank={RANK}, start_powerSGD_iter=1000"
        hook = f"({POWER_SGD}.PowerSGDState({state}), {POWER_SGD}.powerSGD_hook)"
        yield Proposal(
            finding,
            PowerSgd(RANK, None if isinstance(outcome, Refused) else outcome.after),
            torch_settings.COMM_HOOK.to(hook),
        )


def names(cpu: bool) -> dict[str, Setting]:
    """The setting per framework."""
    hook = "fp16_compress_hook" if cpu else "bf16_compress_hook"
    return {
        "ddp": torch_settings.COMM_HOOK.to(f"(None, {HOOKS}.{hook})"),
        "fsdp2": torch_settings.MP_POLICY.to("MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)"),
        "fsdp": torch_settings.MIXED_PRECISION.to("MixedPrecision(reduce_dtype=torch.bfloat16)"),
        "deepspeed": deepspeed_settings.COMMUNICATION_DATA_TYPE.to("bf16"),
        "megatron": megatron_settings.GRAD_REDUCE_IN_BF16.to(""),
        "horovod": other_settings.COMPRESSION.to("hvd.Compression.fp16"),
    }


RULE = Rule("compression", (PowerSgd, WireBits), propose, place=50)
