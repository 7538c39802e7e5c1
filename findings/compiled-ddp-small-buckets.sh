#!/usr/bin/env bash
# Expected: a bucket size that DistributedDataParallel accepts is accepted when the model is compiled, too.
# Seen: torch.compile of a DDP model with bucket_cap_mb below 1 raises an AssertionError at the first step, since the
#     first bucket, 1 MiB, would be larger than the others; in eager the same job runs.
# Version: torch 2.13.0 (CPU, gloo, two ranks), 2026-11-28
# Matters: a setting that helps in eager ends a compiled job; advice must know whether the model is compiled.
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

from torch.nn.parallel import DistributedDataParallel

def runs(compiled):
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02)
    try:
        (torch.compile(model, backend="aot_eager") if compiled else model)(torch.randn(4, 64)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "runs"

seen = runs(False), runs(True)
if rank == 0:
    print(seen)
assert seen[0] == "runs"
assert "First bucket should be smaller" in seen[1]

dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 job.py
