"""A script as others write them, recorded by `gpuscope record` on a GPU: it forks, then trains, then asks for too much.

`recorded_script.py FACTS`: what it saw goes into the file FACTS, as JSON. Started by torchrun, one process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS = 16
SIZE = 4096


def in_child(question: Callable[[], bool]) -> bool:
    """The answer of a forked process: False too where it dies, as CUDA lets it after its parent has begun."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if question() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def uses_cuda() -> bool:
    return float(torch.ones(4, device="cuda").sum()) == 4


def sees_no_device() -> bool:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return torch.cuda.device_count() == 0


def train(device: torch.device) -> None:
    """A step copies a batch from pinned memory, computes for long enough to be sampled, and reads its loss."""
    weight = torch.nn.Parameter(torch.full((SIZE, SIZE), 1e-4, device=device))
    optimizer = torch.optim.SGD([weight], lr=1e-6)
    batch = torch.ones(SIZE, SIZE).pin_memory()
    for _ in range(STEPS):
        x = batch.to(device, non_blocking=True)
        for _ in range(20):
            x = x @ weight.detach()
        loss = (x @ weight).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def nvml_device(device: torch.device) -> dict[str, Any]:
    """PCI addresses: of the device that NVML samples, and of the one that torch uses."""
    from gpuscope.instrumented_runtime.record.nvml_samples import current_device

    found = current_device()
    if found is None:
        return {"nvml_bus": None}
    nvml, handle = found
    return {"nvml_bus": nvml.nvmlDeviceGetPciInfo(handle).bus, "torch_bus": _bus(device)}


def _bus(device: torch.device) -> int | None:
    return getattr(torch.cuda.get_device_properties(device), "pci_bus_id", None)


def ask_for_too_much(device: torch.device) -> bool:
    """Whether torch called it out of memory."""
    try:
        torch.empty(2 * torch.cuda.get_device_properties(device).total_memory, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def main(facts_file: Path) -> None:
    facts: dict[str, Any] = {"initialised_by_import": torch.cuda.is_initialized()}
    dist.init_process_group("gloo")  # the recording begins here
    facts["initialised_by_recording"] = torch.cuda.is_initialized()
    facts["child_sees_no_device"] = in_child(sees_no_device)
    facts["child_uses_cuda"] = in_child(uses_cuda)
    device = torch.device("cuda", torch.cuda.device_count() - 1)  # not the first one, where there is another
    torch.cuda.set_device(device)
    train(device)
    facts |= nvml_device(device)
    facts["out_of_memory"] = ask_for_too_much(device)
    facts_file.write_text(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
