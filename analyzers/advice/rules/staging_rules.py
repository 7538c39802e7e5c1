"""Exchanges that go through host memory, though the devices could reach each other."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import (
    Case,
    Proposal,
    Rule,
    as_reported,
    by_framework,
    config,
    could_be,
    in_dialect,
    needed,
    of_anyone,
    on_cpu,
    python,
    step_now,
)
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import Predicted, Refused, WireBytes
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.frameworks import WRAPPERS
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Collectives on the stream that computes: the way out, by framework.

LEAST = 0.03
"""Share of the time from which it is worth a change, as of any stall."""


@dataclass(frozen=True)
class OwnStream(Suggestion):
    """A stream of its own, and the wait for its result as late as possible."""

    code = "own_stream"
    answers = ("shared_stream",)
    sets = """`async_op=True` and a later `wait()`, Megatron `--tp-comm-overlap`, where a stream carries compute and \
communication"""
    action = "Issue these collectives asynchronously and wait where their result is used"
    why = "{cost}; on one stream nothing can run beside them"
    why_not = (
        "which later kernel needs the result is not recorded: at most {share} of the time, and nothing where the very "
        "next one does"
    )
    risk = "a result that is read before work.wait() is not there yet; buffers must live until then"
    verify = "record again: collectives on a stream of their own, overlap_frac of the ranks rises"

    share_frac: float

    @property
    def share(self) -> str:
        return units.share(self.share_frac)


def stream_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One suggestion for all devices: that of the finding that costs most."""
    if finding["share_frac"] < LEAST or finding is not max(_all(case), key=lambda one: one["share_frac"]):
        return
    setting = by_framework(
        case,
        python(
            "torch.distributed collectives",
            "async_op=True, and work.wait() right before the first use; of several "
            "in a row, the next one's input is computed meanwhile",
        ),
        megatron=other_settings.TP_COMM_OVERLAP.to(""),
    )
    yield Proposal(finding, OwnStream(finding["share_frac"]), setting)


def _all(case: Case) -> list[FindingEntry]:
    """One per device; the suggestion is the same for all."""
    return [one for one in case.report["findings"] if one["code"] == "shared_stream"]


STREAM_RULE = Rule("streams", (OwnStream,), stream_rules_propose, place=250)


# Fewer bytes on the wire: gradients reduced in 16 bits.

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
    reaches = ("half_bytes_ns",)
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


def compression_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """16-bit gradients by the framework's own means, or the program's."""
    setting = in_dialect(case, names(on_cpu(case)))
    if setting is None:
        in_words = of_anyone(
            case, "gradients in 16 bits", names(on_cpu(case)), "cast before the all-reduce, back behind"
        )
        by_hand = case.program == "pytorch" and not WRAPPERS & set(case.frameworks)
        setting = BY_HAND if by_hand and (in_words is None or not could_be(case)) else in_words
        if setting is not None and not isinstance(case.predict((WireBytes(HALF),)), Refused):
            yield Proposal(finding, WireBits(), setting, (WireBytes(HALF),))
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
        "deepspeed": other_settings.COMMUNICATION_DATA_TYPE.to("bf16"),
        "megatron": other_settings.GRAD_REDUCE_IN_BF16.to(""),
        "horovod": other_settings.COMPRESSION.to("hvd.Compression.fp16"),
    }


COMPRESSION_RULE = Rule(
    "compression", (PowerSgd, WireBits), compression_rules_propose, programs=("pytorch", "native"), place=50
)


# Which ranks share a host, and what joins GPUs to it.

PLACEMENT_RULES_LEAST = 0.03
"""Share of the time from which a slow link is worth a repair, as of any stall."""


@dataclass(frozen=True)
class InsideHost(Suggestion):
    """The group that communicates most on neighbouring ranks."""

    code = "inside_host"
    answers = ("group_across_hosts",)
    sets = "the order of the device mesh: tensor parallel within a host"
    action = "Lay the ranks out so that this group lies within one host, pipeline and data parallel across hosts"
    why = "{message}"
    why_not = (
        "this trace does not show how fast the group is within a host: measure it with `gpuscope bench collectives` on "
        "one host"
    )
    risk = "checkpoints sharded by the old layout must be resharded (DCP does it on loading)"
    verify = "record again: the group's busbw is that of the link inside the host"


@dataclass(frozen=True)
class WholeLink(Suggestion):
    """A link of a GPU that runs below what its hardware can."""

    code = "whole_link"
    answers = ("slow_pcie", "slow_copies", "degraded_link")
    sets = "the card or its riser reseated, another slot, bifurcation in the BIOS, or another host"
    action = "Repair the link of {who}: reseat the card, choose another slot, or use another host"
    why = "{message}"
    why_not = "how much of the time of a copy the link takes is not in a trace"
    risk = "none for training; the host has to be stopped"
    verify = "`gpuscope bench topology` on the host names no card on fewer lanes; record again: copies get shorter"

    ranks: list[int]

    @property
    def who(self) -> str:
        return units.rank_words(self.ranks) if self.ranks else "the GPUs named"


def placement_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The dimension that talks most innermost, so that it stays within a host; links as wide as they can be."""
    if finding["code"] in WholeLink.answers:
        if finding["code"] == "slow_copies" and finding["share_frac"] < PLACEMENT_RULES_LEAST:
            return
        setting = config("PCIe or NVLink of the GPU", "all that the card can use")
        yield Proposal(finding, WholeLink(finding["ranks"]), setting)
        return
    setting = by_framework(
        case,
        torch_settings.MESH_DIM_NAMES.to('("pp", "dp", "tp")  # the last one is innermost'),
        megatron=other_settings.TENSOR_PARALLEL.to("at most the GPUs of one host"),
    )
    yield Proposal(finding, InsideHost(), setting)


PLACEMENT_RULE = Rule("placement", (InsideHost, WholeLink), placement_rules_propose, place=210)


# Experts with uneven numbers of tokens: a router that balances, or a limit on what an expert takes.


@dataclass(frozen=True)
class EvenRouting(Suggestion):
    """A router that gives every rank's experts as much."""

    code = "even_routing"
    answers = ("expert_imbalance",)
    sets = "the weight of the auxiliary loss, or an expert bias"
    action = "Balance the router, or move the experts with most tokens to other ranks"
    why = "{busiest} up to {most:.2f} times the mean; the others wait for its experts and for its part of the transfers"
    risk = "a stronger auxiliary loss costs quality; a bias (DeepSeek-V3's) less; real routing is never quite even"
    verify = "record again: experts.ranks[].load below 1.2"

    busiest: str
    most: float


@dataclass(frozen=True)
class CapacityFactor(Suggestion):
    """Tokens beyond a limit are dropped."""

    code = "capacity_factor"
    answers = ("expert_imbalance",)
    sets = "the capacity factor of the experts"
    action = "Limit each expert to {factor:g} times the mean of the tokens"
    why = "it bounds the busiest rank; {dropped} of the tokens are dropped with the recorded routing"
    risk = "dropped tokens pass the layer unchanged, which costs quality: try a balanced router first"
    verify = "record again: experts.ranks[].load, and the loss"

    factor: float
    dropped: str


def expert_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Even routing first, then the capacities that drop something, the mildest first."""
    section = case.report.get("experts")
    if section is None or not section["gains"]:
        return
    most = max(section["ranks"], key=lambda one: one["load"])
    even = section["gains"][0]
    limits = [one for one in section["gains"] if one["kind"] == "capacity"]
    told = EvenRouting(f"rank {most['rank']} receives", most["load"])
    yield Proposal(finding, told, other_settings.AUX_LOSS.to("higher, or an expert bias"), outcome=as_reported(even))
    for one in sorted(limits, key=lambda one: one["dropped_frac"]):
        factor = one["capacity_factor"] or 1.0
        limit = CapacityFactor(factor, units.share(one["dropped_frac"]))
        yield Proposal(finding, limit, other_settings.CAPACITY_FACTOR.to(f"{factor:g}"), outcome=as_reported(one))


EXPERT_RULE = Rule("experts", (EvenRouting, CapacityFactor), expert_rules_propose, place=106)
"""What uneven routing costs beside a slow rank and the network."""


@dataclass(frozen=True)
class DeviceBuffers(Suggestion):
    """Device buffers given to MPI, or to NCCL."""

    code = "gpu_aware_exchange"
    answers = ("host_staged_exchange",)
    sets = "device pointers given to a CUDA-aware MPI, or NCCL, where data goes through host memory"
    action = "Exchange device buffers directly, without copies through host memory"
    why = "{cost}; {message}"
    risk = "needs an MPI built for it, and GPUDirect (nvidia-peermem) between hosts; else it stages by itself"
    verify = "record again: no copies to and from the host around the messages"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the kind of program."""
    if case.native or case.program is None:
        setting = config(
            "MPI_Send, MPI_Recv and their kin",
            "device pointers, with a CUDA-aware MPI (Open MPI over "
            "UCX, MVAPICH2-GDR, Cray MPICH with MPICH_GPU_SUPPORT_ENABLED=1), or NCCL",
        )
    elif case.program == "jax":
        setting = other_settings.JAX_INITIALIZE.to("collectives inside jit, over NCCL")
    else:
        setting = torch_settings.INIT_PROCESS_GROUP.to('backend="nccl"  # tensors stay on the device')
    yield Proposal(finding, DeviceBuffers(), setting, outcome=_outcome(case, finding))


def _outcome(case: Case, finding: FindingEntry) -> Predicted | Refused:
    """The copies gone, the messages as long as they are."""
    before = step_now(case)
    own = [rank for rank in case.report["ranks"] if rank["rank"] in finding["ranks"]]
    exposed = [needed(case, rank, "exposed_memory") for rank in own]
    # Copies beside kernels cost the step nothing.
    saved = min(finding.get("per_step_ns") or 0, max(exposed, default=0))
    if not 0 < saved < before:
        return Refused("how much of the step the copies take with nothing beside them is not known")
    return Predicted(
        before,
        before - saved,
        max(before - 2 * saved, 0),
        before - saved // 2,
        f"the copies around the messages ({units.duration(saved)}) gone, the messages as long as now; at worst half of "
        "the copies' time stays, at best as much again goes with messages that need not wait (assumed)",
        "assumed",
    )


STAGING_RULE = Rule("staging", (DeviceBuffers,), propose, programs=("pytorch", "jax", "native"), place=230)


RULES = (COMPRESSION_RULE, EXPERT_RULE, PLACEMENT_RULE, STAGING_RULE, STREAM_RULE)
