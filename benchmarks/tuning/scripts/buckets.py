"""DDP with a bucket for each parameter."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = common.options()
    rank = common.join()
    model = DistributedDataParallel(common.layers(60, 64), bucket_cap_mb=25 if args.fixed else 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
