"""Adam with foreach off: many small tensors, one at a time."""

import common
import torch


def main() -> None:
    args = common.options()
    model = common.layers(150, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=args.fixed)
    data = torch.randn(8, 32)
    clock = common.Clock()
    for _ in range(args.steps):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()
    clock.report(loss)


if __name__ == "__main__":
    main()
