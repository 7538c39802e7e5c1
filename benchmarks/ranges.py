"""Cost of a range, and of each way of recording, side by side.

    python -m benchmarks.ranges

The first table times an empty range in one process: nothing listening, torch's profiler, an NVTX tool (the
one of the tests, compiled here; left out without a C compiler). The second one runs one DDP script on two
gloo ranks under every way of recording, all ways in turn in each round, so that a slow phase of the
machine affects all of them; it compares medians over the recorded steps, of wall time and of the rank's CPU time
(which a busy machine disturbs less).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
LISTENER = ROOT / "tests/runtime/record/nvtx_listener.c"
SKIPPED, STEPS = 10, 30
RANGES_PER_STEP = 20  # of the demo trainer: data, forward, backward, optimizer… with four micro-batches

RECORD = [sys.executable, "-c", "from gpuscope.cli import main; main()", "record"]
PLAIN = ["--no-collectives", "--flight-recorder", "0", "--hang-timeout", "0", "--memory", "off", "--nvml-interval", "0"]
WINDOW = ["--wait", str(SKIPPED - 5), "--warmup", "5", "--active", str(STEPS)]
MODES: dict[str, list[str] | None] = {
    "nothing": None,
    "recorder, everything off": [*PLAIN, "--profiler", "none"],
    "gloo's collectives": [*PLAIN[1:], "--profiler", "none"],
    "all but a profiler": ["--profiler", "none"],
    "torch.profiler": [*PLAIN, *WINDOW, "--no-shapes"],
    "torch.profiler, shapes": [*PLAIN, *WINDOW],
    "torch.profiler, shapes, stacks": [*PLAIN, *WINDOW, "--stacks"],
    "the defaults": WINDOW,
    "nsys": [*PLAIN, *WINDOW, "--profiler", "nsys"],
}

# Run by torchrun: (wall, CPU) ns of each step of rank 0, with as many ranges as the trainer has.
TRAINING = f"""
import json, sys, time
import torch, torch.distributed as dist
from gpuscope.instrumented_runtime.train.mesh import leave_world
from gpuscope.instrumented_runtime.record.ranges import span
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [m for _ in range(6) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
times = []
for step in range({SKIPPED + STEPS} + 2):
    began, began_cpu = time.perf_counter_ns(), time.process_time_ns()
    for layer in range({RANGES_PER_STEP} - 3):
        with span("layer", step=step, layer=layer):
            pass
    with span("forward", step=step):
        loss = model(torch.ones(64, 512)).pow(2).mean()
    with span("backward", step=step):
        loss.backward()
    with span("optimizer", step=step):
        optimizer.step()
        optimizer.zero_grad()
    times.append((time.perf_counter_ns() - began, time.process_time_ns() - began_cpu))
if dist.get_rank() == 0:
    json.dump(times[{SKIPPED}:{SKIPPED + STEPS}], open(sys.argv[1], "w"))
leave_world()
"""

# Run alone: ns per range of one listener, {"name": ns}.
TIMING = """
import contextlib, json, sys, timeit
import torch
from gpuscope.instrumented_runtime.record.ranges import span

def per_call(function, number):
    return min(timeit.repeat(function, number=number, repeat=5)) / number * 1e9

def bare():
    with span("forward"): pass

def payload():
    with span("forward", step=3, micro_batch=2, nbytes=4096): pass

def theirs():
    with torch.profiler.record_function("forward"): pass

where, number = sys.argv[1], 20_000
if where == "idle":
    import nvtx
    def annotate():
        with nvtx.annotate("forward", domain="other"): pass
    measured = {"span, no listener": per_call(bare, number),
            "span with payload, no listener": per_call(payload, number),
            "record_function, no listener": per_call(theirs, number),
            "nvtx.annotate, no listener": per_call(annotate, number)}
elif where == "nvtx":
    measured = {"span, NVTX tool": per_call(bare, number), "span with payload, NVTX tool": per_call(payload, number)}
else:
    def active(function, **options):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options):
            function()
            return per_call(function, number)
    measured = {"span, torch.profiler": active(bare), "span with payload, torch.profiler": active(payload),
            "span with payload, torch.profiler with shapes": active(payload, record_shapes=True),
            "record_function, torch.profiler": active(theirs)}
print(json.dumps(measured))
"""


def ns_per_range(folder: Path) -> dict[str, float]:
    """Table 1: ns per range, by listener. Each in a process of its own: NVTX tools attach at start-up."""
    measured: dict[str, float] = {}
    for where in ("idle", "profiler", "nvtx"):
        environment = dict(os.environ)
        if where == "nvtx":
            compiler = shutil.which("cc") or shutil.which("gcc")
            if compiler is None:
                continue
            library = folder / "listener.so"
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, LISTENER], check=True)
            environment["NVTX_INJECTION64_PATH"] = str(library)
        done = subprocess.run(
            [sys.executable, "-c", TIMING, where], env=environment, check=True, capture_output=True, text=True
        )
        measured |= json.loads(done.stdout.splitlines()[-1])
    return measured


Times = dict[str, list[tuple[int, int]]]


def step_times(folder: Path, rounds: int) -> Times:
    """Table 2: (wall, CPU) ns of every recorded step, by way of recording."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    measured: Times = {mode: [] for mode in MODES if mode != "nsys" or shutil.which("nsys")}
    for number in range(rounds):
        for mode in measured:
            times = folder / "times.json"
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            command = [*launch, str(script), str(times)]
            words = MODES[mode]
            if words is not None:
                command = [*RECORD, *words, "-o", str(folder / f"run{number}-{mode}"), "--", *command]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, capture_output=True, env=environment)
            measured[mode] += json.loads(times.read_text())
    return measured


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Runs of each way of recording; 0: ranges only.")
def main(rounds: int) -> None:
    """Measure and print both tables."""
    with tempfile.TemporaryDirectory() as temporary:
        for name, ns in ns_per_range(Path(temporary)).items():
            print(f"{name:<48}{ns:>8.0f} ns")
        steps = step_times(Path(temporary), rounds) if rounds else {}
    print(f"\n{'recording':<34}{'step, ms':>9}{'overhead':>10}{'CPU, ms':>10}{'overhead':>10}" if steps else "")
    for mode, times in steps.items():
        (wall, cpu), (bare, bare_cpu) = _medians(times), _medians(steps["nothing"])
        print(f"{mode:<34}{wall / 1e6:>9.2f}{wall / bare - 1:>+10.1%}{cpu / 1e6:>10.2f}{cpu / bare_cpu - 1:>+10.1%}")


def _medians(times: list[tuple[int, int]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


if __name__ == "__main__":
    main()
