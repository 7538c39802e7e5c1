"""Histograms of all gradients, written as text in every step: no setting takes that out of the loop."""

import json
import tempfile

import common
import torch
from torch import nn


def histograms(model: nn.Module) -> str:
    """Of every parameter's gradient."""
    found = {}
    for name, parameter in model.named_parameters():
        counts = [0] * 64
        values = parameter.grad.flatten()[:1024].tolist()
        low, high = min(values), max(values)
        for value in values:
            counts[int((value - low) / (high - low + 1e-12) * 63)] += 1
        found[name] = {"low": low, "high": high, "counts": counts}
    return json.dumps(found)


def main() -> None:
    args = common.options()
    model = common.layers(30, 96)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 96)
    clock = common.Clock()
    with tempfile.TemporaryFile("w") as log:
        for step in range(args.steps):
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if not args.fixed:
                log.write(f"{step} {loss.item()} {histograms(model)}\n")
            optimizer.step()
            clock.step()
    clock.report(loss)


if __name__ == "__main__":
    main()
