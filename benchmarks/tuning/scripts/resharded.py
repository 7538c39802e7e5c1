"""FSDP2 that gathers every layer twice a step, in memory that would hold all of them."""

import common
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    args = common.options()
    rank = common.join()
    mesh = init_device_mesh("cpu", (2,))
    model = common.layers(32, 64)
    for layer in model:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh, reshard_after_forward=not args.fixed)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
