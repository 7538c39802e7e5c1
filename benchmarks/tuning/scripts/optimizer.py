"""Adam with foreach off: many small tensors, one at a time."""

import common
import torch


def main() -> None:
    args = common.options()
    model = common.layers(150, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=args.fixed)
    data = torch.randn(8, 32)
    common.train(model, optimizer, data, args.steps)


if __name__ == "__main__":
    main()
