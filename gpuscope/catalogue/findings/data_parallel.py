"""Options of DDP, FSDP and DataParallel that cost time."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class SyncedAccumulation(Finding):
    """Gradients are accumulated over several micro-batches, and DDP or FSDP reduces them in each. Its cost is
    communication that stays exposed for those that need not be sent, part of the communication finding beside it.
    """

    code = "synced_accumulation"
    recognised = """several forward passes of the whole model in a step (`DistributedDataParallel.forward`,
    `FSDP::root_pre_forward`, `FullyShardedDataParallel._to_kwargs`), each followed by as many all-reduces, of FSDP
    reduce-scatters."""
    helps = """`no_sync()` around all but the last micro-batch, FSDP2 `set_requires_gradient_sync(False)`;
    `Accelerator.accumulate`."""
    misleads = """a model that is run several times per step on purpose (GANs, contrastive pairs): each pass needs its
    gradients."""

    micro_batches: int
    share: float

    def message(self) -> str:
        return (
            f"Gradients are reduced in each of {self.micro_batches} micro-batches of a step, where the last one would "
            f"do: {units.share(self.share)} of the time is communication exposed for the others"
        )


@dataclass(frozen=True)
class SeparateReductions(Finding):
    """A program reduces its gradients one by one, in a loop over its parameters: each message pays the fixed cost of a
    collective, and none is hidden behind the backward pass. Part of the communication finding beside it.
    """

    code = "separate_reductions"
    recognised = """ten or more all-reduces in a row in a judged step, no matrix product between them, twice as many as
    buckets of 25 MiB would be; no mark of DDP, FSDP, DeepSpeed, Megatron or Horovod."""
    helps = "`DistributedDataParallel`; or one all-reduce of all gradients in one flat tensor."
    misleads = "all-reduces that are no gradients: metrics in the same place, of 1 MiB or more in all."

    count: int
    """Per step."""
    bytes: int | None
    """Of all of them in a step, where recorded."""
    share: float

    def message(self) -> str:
        of = f" of {units.size(self.bytes // self.count)} on average" if self.bytes else ""
        return (
            f"{self.count} all-reduces{of} follow one another in each step, where a few would do: "
            f"{units.share(self.share)} of the time is communication exposed for them"
        )


@dataclass(frozen=True)
class UnusedParameterSearch(Finding):
    """DDP walks the graph for parameters without a gradient before each backward pass, while the device idles. Part
    of the finding on the host beside it.
    """

    code = "unused_parameter_search"
    recognised = "`search_unused_parameters` of DDP's reducer in every judged step."
    helps = "`find_unused_parameters=False`; `static_graph=True` where the same parameters are unused each time."
    misleads = "a model whose used parameters really change from step to step."

    share: float

    def message(self) -> str:
        return (
            "DDP searches the graph for unused parameters in every step while the device idles: "
            f"{units.share(self.share)} of the time"
        )


@dataclass(frozen=True)
class GradientCopies(Finding):
    """DDP copies each reduced gradient out of its bucket, with nothing else running. It is part of the finding on
    copies or of compute.
    """

    code = "gradient_copies"
    recognised = """device work launched within `copy_bucket_to_grad` (or, with a communication hook,
    `reducer::copy_`) of DDP's reducer. A gradient that is a view of its bucket has none."""
    helps = "`gradient_as_bucket_view=True`."
    misleads = "a program that replaces `.grad`: then copies stay."

    share: float

    def message(self) -> str:
        return (
            "DDP copies every gradient between its bucket and itself, with nothing else running: "
            f"{units.share(self.share)} of the time"
        )


@dataclass(frozen=True)
class LimitedGathers(Finding):
    """FullyShardedDataParallel (FSDP1) lets only two all-gathers of parameters be under way. The host waits in that
    limit, and the device for the gather behind it. It is part of the finding on communication or on idle time.
    """

    code = "limited_gathers"
    recognised = """`FullyShardedDataParallel.rate_limiter`; its cost is what is no compute from the start of such a
    wait to the end of the gather issued behind it. FSDP2 has no such limit."""
    helps = "`limit_all_gathers=False`, where memory allows."
    misleads = "a limit that memory needs: without it the allocator may retry, which costs more."

    share: float

    def message(self) -> str:
        return (
            "The host waits in FSDP's limit on all-gathers, and the device then for the gathers behind it: "
            f"{units.share(self.share)} of the time is no compute there"
        )


@dataclass(frozen=True)
class LateGathers(Finding):
    """FSDP1 gathers the parameters for the backward pass of a module only when that begins, though it could gather
    them while the module before computes its gradients.
    """

    code = "late_gathers"
    recognised = """all-gathers issued in `_pre_backward_hook` outside of `_pre_backward_prefetch`, for more than half
    of them, and exposed."""
    helps = "`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`, the default."
    misleads = "a model with a single wrapped module, which has nothing to prefetch."

    late: int
    """Gathers issued where they are needed, of `gathers` in the backward pass."""
    gathers: int
    share: float

    def message(self) -> str:
        return (
            "FSDP gathers parameters for the backward pass only where they are needed "
            f"({self.late} of {self.gathers} gathers): {units.share(self.share)} of the time is communication exposed "
            "for them"
        )


@dataclass(frozen=True)
class SingleProcess(Finding):
    """`nn.DataParallel` drives several devices from one process: it copies the model to all of them in every step,
    launches for all under one interpreter lock, and gathers on one.
    """

    code = "single_process"
    severity = "medium"
    recognised = """its range `DataParallel.forward`, and a process with several devices. Its cost is the time in
    which not even the busiest device computes."""
    helps = "`DistributedDataParallel`, one process per GPU."
    misleads = "devices that idle for another reason (a loader); the other findings name it."

    devices: int
    share: float

    def message(self) -> str:
        return (
            f"nn.DataParallel drives {self.devices} devices from one process, which copies the model to all of them "
            f"in every step: in {units.share(self.share)} of the time or more none computes"
        )


@dataclass(frozen=True)
class DebugChecks(Finding):
    """`TORCH_DISTRIBUTED_DEBUG=DETAIL` is set: before every collective all ranks meet at a barrier of gloo's and gather
    what each is about to call. Its cost is what these checks take once the last rank has come; part of the
    communication finding beside it, on a GPU of the host's.
    """

    code = "debug_checks"
    recognised = """sends and receives, then two all-gathers, inside the call of a collective (`c10d::allreduce_`…) on
    the calling thread."""
    helps = "unset `TORCH_DISTRIBUTED_DEBUG` (or set it to `OFF`) once the mismatch that it was set for is found."
    misleads = "a job that is run to find a mismatch of collectives: there the checks are its purpose."

    count: int
    """Per rank and step."""
    share: float

    def message(self) -> str:
        return (
            f"TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective before it runs ({self.count} per step): "
            f"{units.share(self.share)} of the time goes into these checks"
        )
