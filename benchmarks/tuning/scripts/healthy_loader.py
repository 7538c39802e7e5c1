"""Two workers that load faster than the model trains."""

import time

import common
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Each comes from slow storage."""

    def __len__(self) -> int:
        return 16 * 256

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(0.002)
        return torch.full((512,), float(place % 7))


def main() -> None:
    args = common.options()
    loader = DataLoader(Rows(), batch_size=16, num_workers=2, persistent_workers=True)
    model = common.layers(20, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    common.train(model, optimizer, loader, args.steps)


if __name__ == "__main__":
    main()
