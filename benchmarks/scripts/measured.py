"""Plain and recorded runs of a script in turn, and what came of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gpuscope
from benchmarks.scripts.cases import Case
from benchmarks.scripts.environments import HOOK, Place
from benchmarks.scripts.reading import read

TIMEOUT_S = 300
FIRST, LAST = 3, 10
"""The steps that `gpuscope record` records by default, from 0 on."""


@dataclass
class Run:
    """One run of a script."""

    wall_s: float
    step_ms: float | None
    """Median over all ranks from one optimizer step to the next within steps 3 to 10; None where too few were seen."""
    logged: int | None
    """Steps by the script's own log."""


@dataclass
class Recorded(Run):
    """A recorded one."""

    ranks: int = 0
    steps: list[int] = field(default_factory=list)
    """Steps that each rank found."""
    trace_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    verdict: str = ""
    cause: str = ""
    """Class and cause as `class/cause`."""
    reading: str = ""
    right: str = ""
    """What a reading without gpuscope says, and whether the verdict agrees with it."""


@dataclass
class Measured:
    """All runs of a case."""

    case: Case
    plain: list[Run]
    recorded: list[Recorded]


def measure(case: Case, place: Place, rounds: int) -> Measured:
    """Run the case `rounds` times plain and recorded, in turn. Raises `RuntimeError` if a run fails."""
    found = Measured(case, [], [])
    for turn in range(rounds):
        found.plain.append(_run(case, place, recorded=False, turn=turn))
        found.recorded.append(_recorded(case, place, turn))
    return found


def _recorded(case: Case, place: Place, turn: int) -> Recorded:
    run = _run(case, place, recorded=True, turn=turn)
    folder = _folder(case, place, recorded=True, turn=turn) / "run"
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = [json.loads(path.read_text()) for path in sorted((folder / "manifest.d").glob("rank*.json"))]
    traces = [entry for entry in manifest["files"] if entry["kind"] == "torch_profiler"]
    told = _told(gpuscope.analyze(folder).report["verdict"])
    by_hand = read([folder / entry["path"] for entry in traces])
    return Recorded(
        **vars(run),
        ranks=len({entry["rank"] for entry in traces}),
        steps=[part["facts"].get("steps", 0) for part in parts],
        trace_bytes=sum(entry["bytes"] for entry in traces),
        problems=[one["message"] for one in manifest["problems"]],
        **told,
        reading=str(by_hand),
        right=by_hand.judge(told["cause"]),
    )


def _told(verdict: Mapping[str, Any]) -> dict[str, str]:
    bound, cause = (
        verdict["bound_by"] or "none",
        verdict["cause"] or ("" if verdict["bound_by"] == "compute" else "open"),
    )
    name = f"{bound}/{cause}" if cause else bound
    share = verdict["share_frac"]
    return {"cause": name, "verdict": f"{name} {100 * share:.0f} %" if share is not None else name}


def _folder(case: Case, place: Place, *, recorded: bool, turn: int) -> Path:
    return place.work / "runs" / case.name.replace(" ", "_") / f"{turn}{'b' if recorded else 'a'}"


def _run(case: Case, place: Place, *, recorded: bool, turn: int) -> Run:
    """Run it once in a fresh folder, with the hook that notes the times of optimizer steps."""
    folder = _folder(case, place, recorded=recorded, turn=turn)
    shutil.rmtree(folder, ignore_errors=True)
    times, scratch = folder / "times", folder / "scratch"
    for each in (times, scratch):
        each.mkdir(parents=True)
    command = case.words(place, scratch)
    if recorded:
        command = [str(place.bin / "gpuscope"), "record", "-o", str(folder / "run"), "--", *command]
    for name in case.links:
        (scratch / name).symlink_to(place.data / name)
    environment = {
        **os.environ, **case.variables(place), "STEP_TIMES": str(times), "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(place.bin), os.environ["PATH"]]), "GPUSCOPE_NO_STORE": "1",
        "HF_HOME": str(place.data / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    environment["PYTHONPATH"] = os.pathsep.join([str(HOOK), *case.path(place)])
    log = folder / "log.txt"
    with log.open("w") as out:
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=scratch, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False
        )
        wall = time.monotonic() - begun
    text = log.read_text(errors="replace")
    if done.returncode != case.exit_code:
        raise RuntimeError(f"{case.name}: exit code {done.returncode}; see {log}\n{text[-1500:]}")
    logged = _logged(case, text)
    if logged not in (None, case.steps):
        raise RuntimeError(f"{case.name}: its log counts {logged} steps, not {case.steps}; see {log}")
    return Run(wall, step_ms(case, times), logged)


def step_ms(case: Case, times: Path) -> float | None:
    """Median time of a recorded step, from the hook's files; processes with other numbers of updates are no ranks."""
    intervals: list[int] = []
    for path in sorted(times.glob("*.txt")):
        calls = [int(line) for line in path.read_text().split()]
        if len(calls) != case.steps * case.updates:
            print(f"{case.name}: {path.name}: {len(calls)} updates, not {case.steps} × {case.updates}", file=sys.stderr)
            continue
        steps = calls[:: case.updates][FIRST : LAST + 1]
        intervals += [after - before for before, after in pairwise(steps)]
    return median(intervals) / 1e6 if intervals else None


def _logged(case: Case, text: str) -> int | None:
    found = re.findall(case.log, text) if case.log else []
    return max(int(one) for one in found) if found else None


def ratio(plain: Sequence[float | None], recorded: Sequence[float | None]) -> float | None:
    """Median over rounds of each round's own ratio."""
    each = [after / before for before, after in zip(plain, recorded, strict=True) if before and after]
    return median(each) if each else None
