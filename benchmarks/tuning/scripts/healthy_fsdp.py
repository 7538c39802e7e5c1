"""FSDP2 over few large layers."""

import common
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    args = common.options()
    rank = common.join()
    mesh = init_device_mesh("cpu", (2,))
    model = common.layers(4, 512)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(1024, 512, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
