"""Whether there is a GPU for what needs one. No torch: the launcher asks too."""

from __future__ import annotations

from pathlib import Path

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.option import check
from gpuscope.instrumented_runtime.train.settings.parallelisms.ddp import DdpConfig


def check_device(config: TrainConfig) -> None:
    """Raise `UsageError` where what needs a GPU meets a machine without one (as the driver's device files tell)."""
    gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or not Path("/dev").is_dir()
    check(gpu or config.train.device != "cuda", "train.device", "there is no GPU here", "--set train.device=cpu")
    on_gpu = gpu and config.train.device != "cpu"
    check(on_gpu or not config.train.cuda_graph, "train.cuda_graph", "needs a GPU")
    bf16 = config[DdpConfig].comm_hook == "bf16"
    check(on_gpu or not bf16, "ddp.comm_hook", "PyTorch's bf16 hook needs a GPU", "ddp.comm_hook=fp16 works without")
