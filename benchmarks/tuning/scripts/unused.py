"""DDP told to look for unused parameters, of which there are none."""

import common
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Mixed(nn.Module):
    """Many small operations: a large graph over which to search."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(400))

    def forward(self, data: Tensor) -> Tensor:
        """One product per parameter."""
        for scale in self.scales:
            data = data * scale
        return data


def main() -> None:
    args = common.options()
    rank = common.join()
    model = DistributedDataParallel(Mixed(), find_unused_parameters=not args.fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(4, 16, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
