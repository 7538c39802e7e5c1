"""Tokens through a real DataLoader: generated, or bytes of a file.

Sample i of step s is the same however the run is divided over ranks, so that a parallel run can be compared
with a single process, and a resumed one continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig

if TYPE_CHECKING:
    import numpy as np

Tokens = Dataset[Tensor]


class GeneratedTokens(Tokens):
    """Endless sequences that follow a noisy rule, so that the loss can fall. Items are [sequence + 1]."""

    def __init__(self, vocabulary: int, sequence: int, seed: int) -> None:
        self.vocabulary, self.sequence, self.seed = vocabulary, sequence, seed

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        start, stride = torch.randint(self.vocabulary, (2,), generator=generator).tolist()
        noise = torch.randint(2, (self.sequence + 1,), generator=generator)
        tokens: Tensor = start + (stride % 7 + 1) * torch.arange(self.sequence + 1) + noise
        return tokens % self.vocabulary


class FileTokens(Tokens):
    """Windows of a file, one token per byte, in a shuffled order that repeats. Items are [sequence + 1]."""

    def __init__(self, path: str, vocabulary: int, sequence: int, seed: int) -> None:
        if vocabulary < 256:
            raise UsageError(
                f"model.vocabulary: {vocabulary} is too small for data.path, whose tokens are bytes",
                hint="--set model.vocabulary=256",
            )
        import numpy as np

        if not Path(path).is_file():
            raise InputError(f"data.path: {path} is not a file")
        self.bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.memmap(path, np.uint8, "r")
        self.sequence = sequence
        self.windows = (len(self.bytes) - 1) // sequence
        if self.windows < 1:
            raise InputError(
                f"data.path: {path} holds {len(self.bytes)} bytes, fewer than one sequence of {sequence}",
                hint="a smaller data.sequence",
            )
        self.order = torch.randperm(self.windows, generator=torch.Generator().manual_seed(seed))

    def __getitem__(self, index: int) -> Tensor:
        start = int(self.order[index % self.windows]) * self.sequence
        return torch.from_numpy(self.bytes[start : start + self.sequence + 1].astype("int64"))


def make_dataset(config: TrainConfig) -> Tokens:
    """The dataset of `config.data`."""
    model, data, seed = config.model, config.data, config.train.seed
    if data.path:
        return FileTokens(data.path, model.vocabulary, data.sequence, seed)
    return GeneratedTokens(model.vocabulary, data.sequence, seed)


class ShardSampler(Sampler[list[int]]):
    """Endless batches of indexes: each step's samples are divided over the ranks in contiguous runs."""

    def __init__(self, batch: int, rank: int, ranks: int, first_sample: int = 0) -> None:
        self.batch, self.rank, self.ranks, self.first_sample = batch, rank, ranks, first_sample

    def __iter__(self) -> Iterator[list[int]]:
        start = self.first_sample + self.rank * self.batch
        while True:
            yield list(range(start, start + self.batch))
            start += self.ranks * self.batch


def make_loader(
    dataset: Tokens, config: TrainConfig, rank: int, ranks: int, first_sample: int = 0, *, pin: bool = False
) -> DataLoader[Tensor]:
    """Batches [data.batch, sequence + 1] for data-parallel rank `rank` of `ranks`."""
    return DataLoader(
        dataset,
        batch_sampler=ShardSampler(config.data.batch, rank, ranks, first_sample),
        num_workers=config.data.workers,
        pin_memory=pin and config.data.pin_memory,
        persistent_workers=config.data.workers > 0,
    )
