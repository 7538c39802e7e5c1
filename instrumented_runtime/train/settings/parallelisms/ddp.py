"""DistributedDataParallel: every rank holds the model, and gradients are averaged in buckets during backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.instrumented_runtime.train.settings.option import at_least, check, option
from gpuscope.instrumented_runtime.train.settings.parallelism import DataParallelism, Need


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """DistributedDataParallel's knobs; `None` keeps PyTorch's own default."""

    bucket_cap_mb: float | None = option(None, "bucket size; none = 25 MiB with a 1 MiB first bucket")
    static_graph: bool = option(False, "promise that the graph never changes")
    gradient_as_bucket_view: bool = option(False, "gradients live in the buckets")
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = option("none", "gradient compression")
    powersgd_rank: int = option(1, "rank of PowerSGD's approximation")

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None:
            check(self.bucket_cap_mb > 0, "ddp.bucket_cap_mb", f"must be positive, not {self.bucket_cap_mb}")
        at_least("ddp", self, 1, "powersgd_rank")


PARALLELISM = DataParallelism(
    place=10,
    names=("ddp",),
    kind="ddp",
    about="DistributedDataParallel; `ddp.*`: bucket size, static graph, bucket views, hooks fp16, bf16, PowerSGD",
    file="ddp",
    section="ddp",
    options=DdpConfig,
    needs=(
        Need(("ddp",), lambda plan: not plan.data.shards_parameters, "--parallel ddp or zero1"),
        Need(("ddp",), lambda plan: plan.degrees.gradient_ranks > 1, "more than one data-parallel rank"),
        Need(
            ("ddp.powersgd_rank",),
            lambda plan: plan.config[DdpConfig].comm_hook == "powersgd",
            "ddp.comm_hook=powersgd",
        ),
    ),
    cuda_graphs=True,
    waits=lambda _: "in reducer",
)
