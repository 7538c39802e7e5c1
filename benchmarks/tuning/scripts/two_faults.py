"""Slow loading between the steps, and a bucket for each parameter."""

import time

import common
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Rows(Dataset):
    """Each comes from slow storage."""

    def __len__(self) -> int:
        return 2 * 16 * 256

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(0.003)
        return torch.full((64,), float(place % 7))


def main() -> None:
    args = common.options()
    common.join()
    data = Rows()
    workers = {"num_workers": 2, "persistent_workers": True} if args.fixed else {}
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False), **workers)
    model = DistributedDataParallel(common.layers(60, 64), bucket_cap_mb=25 if args.fixed else 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    common.train(model, optimizer, loader, args.steps)


if __name__ == "__main__":
    main()
