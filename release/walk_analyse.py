"""In an empty environment: analyse, look, compare, check, store, convert to JSON; all outside the clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(sys.argv[1])
PROGRAM = str(Path(sys.executable).with_name("gpuscope"))


def gpuscope(*args: object, status: int = 0) -> str:
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == status, f"gpuscope {' '.join(map(str, args))}: {done.returncode}: {done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.environ |= {"GPUSCOPE_STORE": str(Path(folder, "runs.db")), "XDG_CACHE_HOME": folder}
    slow, healthy = SAMPLES / "ddp_slow_rank", SAMPLES / "ddp_healthy"
    report = json.loads(gpuscope("analyze", slow, "--json", "--html", "report.html"))
    assert report["verdict"]["cause"] == "straggler"
    assert Path("report.html").stat().st_size > 10_000
    assert "Rank 1 is late" in gpuscope("analyze", slow)
    assert json.loads(gpuscope("diff", slow, healthy, "--json"))["verdict"]["result"] == "improvement"
    gpuscope("check", slow, "--baseline", healthy, status=1)
    gpuscope("info", slow)
    gpuscope("reduce", slow, "-o", "parts")
    assert json.loads(gpuscope("runs", "--json"))[0]["cause"] == "straggler"
    assert (
        len(json.loads(gpuscope("advise", "--model", "llama-3-8b", "--cluster", "8xH100", "--json"))["candidates"]) > 0
    )
    json.loads(gpuscope("schema", "report"))
    gpuscope("analyze", "nothing", status=3)
    import gpuscope as package
    from gpuscope.native import core

    tables = package.analyze(slow).tables
    assert len(tables["steps"]) == 6
    print(f"analyze, diff, check, info, reduce, runs, advise, schema, tables; native core {core is not None}")
