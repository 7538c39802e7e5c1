"""Images that take long to read, loaded between the steps."""

import time

import common
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Each comes from slow storage."""

    def __len__(self) -> int:
        return 16 * 256

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(0.004)
        return torch.full((3, 32, 32), float(place % 7))


def main() -> None:
    args = common.options()
    workers = {"num_workers": 2, "persistent_workers": True} if args.fixed else {}
    loader = DataLoader(Images(), batch_size=16, **workers)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 256), common.layers(20, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    common.train(model, optimizer, loader, args.steps)


if __name__ == "__main__":
    main()
