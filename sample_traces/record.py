"""Records the sample traces again, with `gpuscope train`: python sample_traces/record.py OUT [NAME...]

Each run is repeated until its recorded steps take about the same time on every rank and its training threads hardly
wait for a core: a machine with other work slows some steps or all, and would put faults into the traces that nobody
injected. What stays of a run
folder is the traces, collectives, measures and the manifest; the name of the machine is
replaced by `node0`, and the description of its environment left out.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WAIT, WARMUP = 2, 2
STEADY, ATTEMPTS = 1.25, 12
WITHOUT_CORE = 0.1  # share of the recorded steps that a training thread may spend runnable and not running
# Whether a rank comes last more often than by chance takes a number of steps to tell; the others are kept small.
LONG, LONG_ACTIVE = ("ddp_healthy", "ddp_slow_loader", "ddp_slow_rank", "ddp_rotating_rank", "ddp_uneven_sequences"), 8
CORES = os.cpu_count() or 1
KEPT = ("rank*.json.gz", "manifest.json", "collectives/*", "measures/*", "compile/*.log")
GPUSCOPE = [sys.executable, "-c", "from gpuscope.cli import main; main()"]
JOB = Path(__file__).with_name("compile_job.py")
COMPILED = [
    "record",
    "--compile-logs",
    "--wait",
    "4",
    "--warmup",
    "1",
    "--active",
    "18",
    "--out",
    "ddp_recompiling",
    "--",
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    str(JOB),
]
LOGGED = re.compile(
    r'\{"(?:str|chromium_event|compilation_metrics|dynamo_start)"|graph_break_reason|recompile_reasons|_cache_|_schedule'
)
"""Entries of torch.compile's log that are kept: others hold the environment, and what Inductor wrote."""
DDP = ["--parallel", "ddp", "--nproc", "2"]
PP = ["--parallel", "pp", "--nproc", "2", "--set", "data.batch=16"]
SMALL_BATCH = ["--set", "data.batch=1", "--set", "data.sequence=32"]
SAMPLES: dict[str, list[str]] = {
    "ddp_healthy": DDP,
    "ddp_slow_loader": [*DDP, "--fault", "slow_loader:ms=80"],
    "ddp_slow_rank": [*DDP, "--fault", "slow_rank:ms=60"],
    "ddp_rotating_rank": [*DDP, "--fault", "slow_rank:ms=1500,rotate=1"],
    "ddp_slow_link": [*DDP, "--fault", "slow_link:mbit=50"],  # needs root and tc
    # So little to compute that the number of messages shows.
    "ddp_tiny_buckets": [*DDP, *SMALL_BATCH, "--fault", "tiny_buckets:mb=0.01"],
    "ddp_host_stall": [*DDP, "--fault", "host_stall:kind=checkpoint,ms=80,every=1"],
    "ddp_uneven_sequences": [*DDP, "--fault", "uneven_sequences:rank=1,short=0.25"],
    "zero1_healthy": ["--parallel", "zero1", "--nproc", "2"],
    "fsdp_healthy": ["--parallel", "fsdp", "--nproc", "2"],
    "tp_healthy": ["--parallel", "tp", "--nproc", "2"],
    "cp_healthy": ["--parallel", "cp", "--nproc", "2"],
    "ep_healthy": ["--parallel", "ep", "--nproc", "2", "--preset", "tiny-moe"],
    "pp_1f1b": PP,
    "pp_few_micro_batches": [*PP, "--fault", "few_micro_batches"],
    "pp_unbalanced_stage": [*PP, "--fault", "unbalanced_stage:times=3"],
    "ddp_recompiling": COMPILED,
    "3d_healthy": ["--parallel", "pp=2+tp=2+fsdp", "--nproc", "4", "--set", "pipeline.micro_batches=2"],
}


def record(name: str, folder: Path) -> bool:
    """Record one sample into `folder`; whether its steps were steady."""
    if name == "ddp_recompiling":  # steps that compile are never alike
        run(SAMPLES[name], folder)
        return True
    active = LONG_ACTIVE if name in LONG else 3 if name.startswith("ddp") else 2  # the others have more events per step
    steps = WAIT + WARMUP + active
    settings = [f"capture.wait={WAIT}", f"capture.warmup={WARMUP}", f"capture.active={active}"]
    words = [*SAMPLES[name], "--steps", str(steps), *(w for s in settings for w in ("--set", s))]
    run(["train", *words, "--out", name], folder)
    measures = list((folder / name / "measures").iterdir())
    # Ranks that share cores are never steady, and no repetition makes them so.
    if len(measures) > CORES:
        return True
    return all(is_steady(path) for path in measures) and all(
        without_core(path) < WITHOUT_CORE for path in (folder / name).glob("rank*.json.gz")
    )


def run(words: list[str], folder: Path) -> None:
    """Run gpuscope in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    subprocess.run([*GPUSCOPE, *words], cwd=folder, env=environment, check=True, capture_output=True)


def shortened(entry: str) -> str:
    """What is kept of an entry of torch.compile's log."""
    head = entry.partition("\n")[0]
    if not LOGGED.search(head) or ('{"chromium_event"' in head and '"name": "dynamo"' not in entry):
        return ""
    return head + "\n" if "_cache_" in head else entry


def is_steady(measures: Path) -> bool:
    """Whether the recorded steps of a rank took about the same time."""
    records = [json.loads(line) for line in measures.read_text().splitlines()]
    times = [record["step_ns"] for record in records if record["step"] >= WAIT + WARMUP]
    return max(times) < STEADY * min(times)


def without_core(trace: Path) -> float:
    """Share of its recorded steps in which a rank's training thread waited for a core."""
    document = json.loads(gzip.decompress(trace.read_bytes()))
    told = document["gpuscope_cores"]
    step, waited = told["columns"].index("step"), told["columns"].index("waited_ns")
    waits = {row[step]: row[waited] for row in told["steps"]}
    spans = {
        int(event["name"].removeprefix("ProfilerStep#")): event["dur"] * 1000
        for event in document["traceEvents"]
        if str(event.get("name")).startswith("ProfilerStep#") and event.get("cat") == "user_annotation"
    }
    shared = waits.keys() & spans.keys()
    return float(sum(waits[number] for number in shared) / sum(spans[number] for number in shared))


def keep(run: Path, out: Path) -> None:
    """Copy what is kept, without the machine's name."""
    kept = [path for pattern in KEPT for path in run.glob(pattern) if path.is_file()]
    for path in kept:
        target = out / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            text = gzip.decompress(path.read_bytes()).decode()
            text = re.sub(r'("host_name"|"host"): "[^"]*"', r'\1: "node0"', text)
            text = re.sub(r'("traceName": )"[^"]*/([^"/]+/[^"/]+)"', r'\1"\2"', text)
            target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        elif path.suffix == ".log":
            entries = re.split(r"^(?=V\d{4} )", path.read_text(), flags=re.MULTILINE)
            text = "".join(map(shortened, entries))
            text = re.sub(r"[^\s\"'\\]*/(?=site-packages/)", "/lib/", text).replace(str(JOB.parent), "/job")
            text = text.replace(str(run.parent.resolve()), "/job")
            target.with_suffix(".log.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        else:
            shutil.copy(path, target)
    manifest = json.loads((run / "manifest.json").read_text())
    for entry in manifest["files"]:
        entry["path"] = re.sub(r"\.log$", ".log.gz", entry["path"])
    manifest["files"] = [entry for entry in manifest["files"] if (out / entry["path"]).exists()]
    for entry in manifest["files"]:
        entry["bytes"] = (out / entry["path"]).stat().st_size
    manifest["command"] = [
        word.replace(f"{JOB.parent}/", "").replace(sys.executable, "python") for word in manifest["command"]
    ]
    for rank in manifest["ranks"]:
        rank["host"] = "node0"
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def main(out: Path, names: list[str]) -> None:
    work = out / "attempts"
    work.mkdir(parents=True, exist_ok=True)
    for name in names or SAMPLES:
        for attempt in range(1, ATTEMPTS + 1):
            shutil.rmtree(work / name, ignore_errors=True)
            if record(name, work):
                keep(work / name, out / name)
                print(f"{name}: attempt {attempt}", flush=True)
                break
        else:
            print(f"{name}: not steady in {ATTEMPTS} attempts, nothing kept", flush=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
