"""The loss read and printed in every step: without a device that is behind, nothing waits for it."""

import sys

import common
import torch


def main() -> None:
    args = common.options()
    model = common.layers(30, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 128)
    clock = common.Clock()
    for step in range(args.steps):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed:
            print(f"step {step}: loss {loss.item():.6f}", file=sys.stderr)
        clock.step()
    clock.report(loss)


if __name__ == "__main__":
    main()
