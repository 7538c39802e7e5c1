"""Two ranks of NCCL on one GPU: `torchrun --nproc-per-node 2 one_device.py [slow_rank|hang|messages]`.

NCCL refuses two ranks on one device where hash of the host and bus id both agree; NCCL_HOSTID replaces the host's name
in the hash. Their transport is then sockets over loopback: real kernels, real arguments, no bandwidth to judge by.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

VARIABLES = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
STEPS = 16
SLOW_MS = 100
PAUSE_S = 0.7
"""So long a step of `messages` lasts at least: the hang watch looks at what has been pending for longer meanwhile."""
HANG_STEP, HANG_S, TIMEOUT_S = 13, 45, 25


def main(fault: str) -> None:
    rank = int(os.environ["RANK"])
    os.environ.update(VARIABLES, NCCL_HOSTID=f"r{rank}")

    import torch
    import torch.distributed as dist

    from gpuscope.instrumented_runtime.train.faults.burn import Burner

    torch.cuda.set_device(0)
    torch.cuda.init()
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))
    layers = [torch.nn.Linear(1024, 1024, device=device) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), device_ids=[0], bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    burner = Burner(device)
    for step in range(STEPS):
        if rank == 1 and fault == "slow_rank":
            burner.run(SLOW_MS * 1_000_000)
        if rank == 1 and fault == "hang" and step == HANG_STEP:
            time.sleep(HANG_S)
        model(torch.ones(256, 1024, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if fault == "messages":
            exchange_and_capture(device, rank)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def exchange_and_capture(device: object, rank: int) -> None:
    """Messages in one batch, and a graph whose capture lasts while the hang watch looks."""
    import torch
    import torch.distributed as dist

    sent, got = torch.ones(1024, device=device), torch.empty(1024, device=device)
    batch = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        got.mul_(2)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
