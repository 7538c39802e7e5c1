"""More threads than cores, as a job file says (`OMP_NUM_THREADS=16`): they wait for each other in every operator."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def block(width: int) -> nn.Sequential:
    """Many small operators, each split over the threads."""
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())


def main() -> None:
    args = common.options()
    if args.fixed:
        torch.set_num_threads(1)
    rank = common.join()
    model = DistributedDataParallel(nn.Sequential(*(block(128) for _ in range(12))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(512, 128, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
