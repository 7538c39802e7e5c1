"""A loader without pinned memory, on a machine where that is as good: nothing can be gained."""

import common
import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    args = common.options()
    loader = DataLoader(TensorDataset(torch.randn(64 * 256, 256)), batch_size=64, pin_memory=False)
    model = common.layers(30, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock = common.Clock()
    for _, (data,) in zip(range(args.steps), loader, strict=False):
        loss = model(data.to("cpu", non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()
    clock.report(loss)


if __name__ == "__main__":
    main()
