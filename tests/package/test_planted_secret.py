"""No output carries a variable of the profiled program's environment that is not on the allow-list."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.cli import call
from helpers.dashboards import viewer
from helpers.kineto import call as launch
from helpers.kineto import kernel, op, span
from helpers.nsys import Export

from gpuscope.analyzers.assistant import mcp_server
from gpuscope.analyzers.assistant.opened_runs import OpenRuns
from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import open_run
from gpuscope.dashboards.ui import pages
from gpuscope.recorded_environment import allowed, kept, redacted, redacted_command
from gpuscope.sources.source import ReadOptions

SECRET = "sk-planted-5e1f"
NSYS = """#!{python}
import pathlib, shutil, sys
if "--version" in sys.argv: sys.exit(print("NVIDIA Nsight Systems version 2026.1.1.1"))
if "--help" in sys.argv: sys.exit(print("usage"))
shutil.copy(pathlib.Path(__file__).parent / "made" / "export.sqlite", sys.argv[sys.argv.index("--output") + 1])
"""


def nsys_report(folder: Path) -> Path:
    """A report whose export holds the secret wherever a real one holds what belongs to the program."""
    export = Export(EXPORT_PARAM_INPUT_FILE="run.nsys-rep")
    for step in range(8):
        at = step * 1_000_000
        export.range(at, at + 900_000, f"step {step}")
        export.call(at + 1_000, at + 2_000, step + 1)
        export.kernel(at + 10_000, at + 500_000, step + 1)
    export.environment(WANDB_API_KEY=SECRET, NCCL_AUTH_TOKEN=SECRET, NCCL_DEBUG="INFO", RANK="0", WORLD_SIZE="1")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_1", value=f"--api-key={SECRET}")
    environment = f"PATH=/bin\0HF_TOKEN={SECRET}\0CUDA_VISIBLE_DEVICES=0\0LONG={SECRET * 2000}\0"
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=environment)
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node1")
    printed = export.string(f"logged in with {SECRET}")
    export.add("ProcessStreams", globalPid=1, filenameId=printed, contentId=printed)
    export.add("DIAGNOSTIC_EVENT", severity=3, text=f"Could not start WANDB_API_KEY={SECRET} python train.py")
    export.write(folder / "bin" / "made")
    (folder / "bin" / "nsys").write_text(NSYS.format(python=sys.executable))
    (folder / "bin" / "nsys").chmod(0o755)
    path = folder / "run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2026@1@1@1-1v0.\nbody")
    return path


def kineto_run(folder: Path) -> Path:
    """A run folder of torch.profiler, with what a script may put into the header, a manifest and NCCL's log."""
    folder.mkdir()
    events = []
    for step in range(8):
        at = 1_000 * step
        events += [
            span("user_annotation", f"ProfilerStep#{step}", at, 900),
            op(at + 1, 400),
            launch(at + 2, 3, step + 1),
        ]
        events.append(kernel(at + 10, 500, step + 1))
    header = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "environment": {"OPENAI_API_KEY": SECRET},
        "WANDB_API_KEY": SECRET,
        "command": f"OPENAI_API_KEY={SECRET} python train.py",
    }
    (folder / "rank0.json").write_text(json.dumps({**header, "traceEvents": events}))
    failed = {"rank": 0, "status": "failed", "error": f"CalledProcessError: HF_TOKEN={SECRET} python x.py"}
    manifest = {"run_id": "r", "status": "failed", "ranks": [failed], "problems": [], "files": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "nccl.log").write_text(
        "node1:1:1 [0] NCCL INFO NCCL version 2.26.2+cuda12.4\n"
        f"node1:1:1 [0] NCCL INFO NCCL_NET_AUTH_TOKEN set by environment to {SECRET}\n"
        "node1:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    )
    return folder


def opened(data: bytes, name: str) -> bytes:
    """The bytes of a file, unpacked where it is packed."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return b"".join(packed.read(member) for member in packed.namelist())
    del name
    return data


@pytest.fixture(params=["nsys", "kineto"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "out" / "cache"))
    monkeypatch.setenv("GPUSCOPE_STORE", str(tmp_path / "out" / "runs.db"))
    monkeypatch.delenv("GPUSCOPE_NO_STORE", raising=False)
    monkeypatch.delenv("GPUSCOPE_NO_CACHE", raising=False)
    monkeypatch.setattr("gpuscope.cache.WORTH", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "in" / "bin"))
    (tmp_path / "in").mkdir()
    return nsys_report(tmp_path / "in") if request.param == "nsys" else kineto_run(tmp_path / "in" / "run")


def test_no_output_carries_the_secret(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    other = tmp_path / "in" / f"other{run.suffix}"  # a copy: a run is not compared with itself
    (shutil.copytree if run.is_dir() else shutil.copy)(run, other)
    said = []
    for args in (
        ("analyze", run, "-v", "--full", "--html", out / "report.html", "--csv", out / "tables"),
        ("analyze", run, "--json"),
        ("info", run),
        ("info", run, "--json"),
        ("runs",),
        ("runs", "--json"),
        ("runs", "show", "1", "--json"),
        ("diff", run, other, "--json"),
        ("check", run, "--baseline", other, "--junit", out / "junit.xml"),
        ("reduce", run, "-o", out / "reduced"),
        ("export", run, "--perfetto", out / "trace.json.gz"),
        ("convert", run, out / "events"),
        ("convert", run, out / "ranks", "--table", "ranks"),
    ):
        done = call(capsys, *args)
        assert done.returncode in (0, 1), (args, done.stderr)
        said.append(done.stdout + done.stderr)
    said += assistant(run)
    said += dashboard(run)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"report.html", "runs.db", "junit.xml", "trace.json.gz"} <= {path.name for path in files}
    assert any(path.suffix == ".gsr" for path in files)
    assert any(path.suffix == ".parquet" for path in files)
    if run.suffix == ".nsys-rep":
        assert any(path.name == "run.nsys-rep.sqlite" for path in files)
    assert [text[:80] for text in said if SECRET in text] == []
    assert [path.name for path in files if SECRET.encode() in opened(path.read_bytes(), path.name)] == []


def assistant(run: Path) -> list[str]:
    """Every answer of the MCP server, and every table that it can be asked for."""
    runs = OpenRuns([run.parent], ReadOptions())
    one = runs.open(run.name)
    tables = [mcp_server.rows(one, f"SELECT * FROM {name}", 200) for name in one.trace.tables if name != "events"]
    return [
        mcp_server.runs(runs),
        mcp_server.opening(one),
        mcp_server.questions_verdict(one),
        mcp_server.questions_findings(one, "", 20),
        mcp_server.advice(one),
        mcp_server.questions_record_advice(one),
        mcp_server.compared(one, one, 0.01, ""),
        *tables,
    ]


def dashboard(run: Path) -> list[str]:
    """Every page of the dashboard, and its downloads."""
    shown = open_run("1", str(run), Options(None, None, 1, ReadOptions()), lambda _: None)
    client = viewer(shown)
    addresses = ["/_dash-layout", "/download/1/ranks.csv", "/download/1/findings.csv", "/download/1/perfetto.json.gz"]
    answers = [client.get(address) for address in [*addresses, *(page.path for page in pages())]]
    assert any(answer.status_code == 200 for answer in answers)
    return [opened(answer.data, "").decode("utf-8", "replace") for answer in answers] + [repr(shown.__dict__)]


def test_what_is_allowed() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "RANK": "1",
        "NCCL_AUTH_TOKEN": "x",
        "CUDA_API_KEY": "x",
        "HOME": "/root",
        "LOCAL_SECRET": "x",
        "MASTER_PASSWORD": "x",
    }
    assert kept(environment) == {"NCCL_DEBUG": "INFO", "RANK": "1"}
    assert not allowed("WANDB_API_KEY")


def test_texts_that_quote_an_environment() -> None:
    assert redacted(f"env HF_TOKEN={SECRET} NCCL_DEBUG=INFO python x.py --lr=0.1 tokens=4096") == (
        "env HF_TOKEN=… NCCL_DEBUG=INFO python x.py --lr=0.1 tokens=4096"
    )
    assert redacted(f"proxy https://user:{SECRET}@host/ AWS='{SECRET}'") == "proxy https://…@host/ AWS=…"
    words = [
        "env",
        f"WANDB_API_KEY={SECRET}",
        "train.py",
        "--api-key",
        SECRET,
        f"--hf-token={SECRET}",
        "--max-tokens",
        "9",
    ]
    assert redacted_command(words) == [
        "env",
        "WANDB_API_KEY=…",
        "train.py",
        "--api-key",
        "…",
        "--hf-token=…",
        "--max-tokens",
        "9",
    ]
