"""More threads than cores, as a job file says (`OMP_NUM_THREADS=16`): they wait for each other in every operator."""

import common
import torch


def main() -> None:
    args = common.options()
    if args.fixed:
        torch.set_num_threads(1)
    model = common.layers(6, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(128, 128)
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
