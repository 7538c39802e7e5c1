"""A queue of earlier keys, as contrastive learning keeps it, sent from rank 0 before every forward pass."""

import common
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Contrast(nn.Module):
    """Its queue is the same on all ranks anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = common.layers(16, 128)
        self.register_buffer("queue", torch.randn(128, 40_000, generator=torch.Generator().manual_seed(1)))

    def forward(self, data: Tensor) -> Tensor:
        """Against some of the queue."""
        return self.encoder(data) @ self.queue[:, :512]


def main() -> None:
    args = common.options()
    rank = common.join()
    model = DistributedDataParallel(Contrast(), broadcast_buffers=not args.fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 128, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
