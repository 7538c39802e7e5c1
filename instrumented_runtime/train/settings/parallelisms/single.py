"""No data parallelism. Ranks of other axes that hold the same parameters are synchronised as by DDP."""

from __future__ import annotations

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.option import check
from gpuscope.instrumented_runtime.train.settings.parallelism import DataParallelism, replicas


def _alone(config: TrainConfig, ranks: int) -> tuple[int, int]:
    check(
        ranks == 1,
        "parallel.data",
        f"'none' leaves {ranks} data-parallel ranks that would never synchronise",
        "choose ddp, zero1, zero2, fsdp or hsdp, or fewer processes",
    )
    return replicas(config, ranks)


PARALLELISM = DataParallelism(
    place=0,
    names=("single",),
    kind="none",
    about="one process; replicas that other parallelisms leave are synchronised as under `ddp`",
    file="ddp",
    split=_alone,
    cuda_graphs=True,
    waits=lambda _: "in reducer",
)
