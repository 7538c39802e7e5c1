#!/usr/bin/env bash
# Expected: an operator on a DTensor is recorded twice: for the whole tensor and for the shard that a rank computes.
# Seen: a sum of an 8 × 8 DTensor on two ranks leaves three nested rows «aten::sum» once its sharding is known, and
#     six at the first call of that shape: DTensor finds the sharding by running the operator on tensors without data,
#     and that is recorded as if it were work. Only the rows of 4 × 8 are the rank's own.
# Version: torch 2.13.0 (CPU, gloo, two ranks), 2026-11-28
# Matters: calls, FLOPs and inclusive times summed by name come out two to four times too large, most in the first
#     step or with changing shapes; the innermost shapes are what runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

cat >job.py <<'PY'
import json
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()

def recorded(work):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        work()
    recording.export_chrome_trace(f"trace{rank}.json")
    with open(f"trace{rank}.json") as file:
        events = json.load(file)["traceEvents"]
    return sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])

from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

mesh = init_device_mesh("cpu", (2,))
tensor = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])

def shapes():
    return [event["args"]["Input Dims"][0] for event in recorded(tensor.sum) if event["name"] == "aten::sum"]

first, second = shapes(), shapes()
if rank == 0:
    print("first call:", first, "second call:", second)
assert first == [[8, 8]] * 4 + [[4, 8]] * 2
assert second == [[8, 8]] + [[4, 8]] * 2

dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 job.py
