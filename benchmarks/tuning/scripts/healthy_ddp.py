"""DDP as it should be."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = common.options()
    rank = common.join()
    model = DistributedDataParallel(common.layers(12, 256), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(512, 256, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
