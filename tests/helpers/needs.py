"""What some tests need and a machine may lack: what is missing, and what to install. `make test` prints these lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

CHROMIUM = "no chromium or chromedriver; apt-get install chromium chromium-driver"
C_COMPILER = "no C compiler; apt-get install gcc libc6-dev"
GPU = "no NVIDIA GPU that torch can use; run `make gpu-check` on a machine with one"
MPIRUN = "no mpirun; apt-get install openmpi-bin"
NATIVE_CORE = "no native core; apt-get install gcc libc6-dev, then python hatch_build.py"
NETWORK_SHAPING = "no network namespaces with tc tbf; run as root with iproute2 installed"
NSYS = "no nsys on PATH; install Nsight Systems from NVIDIA"
PROC = "no /proc; run on Linux"
PUBLIC_TRACES = "no ../shared/traces beside this checkout; other people's traces, not in the repository"
SLURM = "no Slurm with an idle node; run where srun and sinfo work"

EXTRAS = "pip install -e '.[test]'"
_IMPORT = re.compile(r"could not import '([\w.]+)'")
"""How `pytest.importorskip` says it."""


def skipped_lines(reasons: Iterable[str]) -> list[str]:
    """A line for each reason, those of most tests first."""
    counts = Counter(_with_remedy(reason) for reason in reasons)
    return [f"{count} skipped: {reason}" for reason, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))]


def _with_remedy(reason: str) -> str:
    reason = " ".join(reason.removeprefix("Skipped: ").split())
    missing = _IMPORT.match(reason)
    return f"no {missing[1]}; {EXTRAS}" if missing else reason
