"""A collate function that fetches what a batch needs, in the training process."""

import time

import common
import torch
from torch import Tensor
from torch.utils.data import DataLoader


def collate(texts: list[str]) -> Tensor:
    """Looks the words up in a slow dictionary, and pads."""
    time.sleep(0.05)
    rows = [[ord(letter) % 64 for letter in text[:64]] for text in texts]
    return torch.tensor([row + [0] * (64 - len(row)) for row in rows], dtype=torch.float32) / 64


def main() -> None:
    args = common.options()
    texts = [f"the text of number {place} " * (1 + place % 3) for place in range(32 * 256)]
    workers = {"num_workers": 2, "persistent_workers": True} if args.fixed else {}
    loader = DataLoader(texts, batch_size=32, collate_fn=collate, **workers)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), common.layers(16, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    common.train(model, optimizer, loader, args.steps)


if __name__ == "__main__":
    main()
