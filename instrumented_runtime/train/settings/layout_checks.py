"""Checks of what would otherwise fail inside the ranks. No torch: the launcher makes them too."""

from __future__ import annotations

from pathlib import Path

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig, check


def check_layers_per_stage(text: str, layers: int, stages: int) -> None:
    """Raise `UsageError` unless `text` is empty or one positive count per stage that sum to `layers`."""
    counts = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")] if text else []
    check(
        not text or (len(counts) == stages and min(counts) > 0 and sum(counts) == layers),
        "pipeline.layers_per_stage",
        f"{text!r} is not {stages} positive counts that sum to {layers}",
    )


def check_device(config: TrainConfig) -> None:
    """Raise `UsageError` where what needs a GPU meets a machine without one (as the driver's device files tell)."""
    gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or not Path("/dev").is_dir()
    check(gpu or config.train.device != "cuda", "train.device", "there is no GPU here", "--set train.device=cpu")
    on_gpu = gpu and config.train.device != "cpu"
    check(on_gpu or not config.train.cuda_graph, "train.cuda_graph", "needs a GPU")
