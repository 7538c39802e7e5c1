"""In an empty environment with torch: record an unchanged script on two processes, train, analyse both, bench.

`short`: record one process, and measure nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("gpuscope"))
SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def gpuscope(*args: object) -> str:
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.environ |= {"GPUSCOPE_NO_STORE": "1", "OMP_NUM_THREADS": "1"}
    Path("script.py").write_text(SCRIPT, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    short = "short" in sys.argv
    if short:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        launcher = [sys.executable]
    gpuscope("record", "-o", "recorded", "--", *launcher, "script.py")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if short else ():
        del os.environ[name]
    gpuscope("train", "--parallel", "ddp", "--nproc", "2", "--out", "trained")
    ranks = [
        json.loads(gpuscope("analyze", run, "--json"))["trace"]["ranks_present"] for run in ("recorded", "trained")
    ]
    assert ranks == [[0] if short else [0, 1], [0, 1]], ranks
    if short:
        sys.exit()
    bench = json.loads(gpuscope("bench", "collectives", "--op", "all_reduce", "-e", "4K", "-n", "2", "--json"))
    assert bench["world_size"] == 2, bench
    print("recorded a script and trained on two processes, analysed both, measured a collective")
