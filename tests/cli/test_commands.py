"""The commands as a user runs them: output, exit codes, nothing overwritten."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.cli import gpuscope
from helpers.kineto import call, kernel, write


def in_a_process(*args: object) -> subprocess.CompletedProcess[str]:
    """As a user does: nothing but what the command prints is printed."""
    command = [sys.executable, "-m", "gpuscope", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A healthy rank beside a launch-bound gap: 0–80 compute, 80–100 idle, 100–110 compute."""
    return write(tmp_path / "rank0.json", call(-5, 2, 1), kernel(0, 80, 1), call(90, 2, 2), kernel(100, 10, 2))


def test_json_is_the_document_and_nothing_else(trace: Path) -> None:
    done = in_a_process("analyze", trace, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["schema_version"] == 3
    assert report["verdict"]["cause"] == "launch"


def test_text_says_the_verdict_first(trace: Path) -> None:
    done = in_a_process("analyze", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The host launches kernels more slowly than they run")


def test_files_are_written_though_nobody_reads_the_report(trace: Path, tmp_path: Path) -> None:
    """As with `| head -1`: standard output is closed before the report is printed."""
    read, write_end = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gpuscope", "analyze", str(trace), "--html", str(tmp_path / "report.html")]
    with os.fdopen(write_end, "w") as closed:
        subprocess.run(command, stdout=closed, stderr=subprocess.DEVNULL, check=False)
    assert "launch" in (tmp_path / "report.html").read_text()


def test_html_and_csv_are_written_once(trace: Path, tmp_path: Path) -> None:
    html, csv = tmp_path / "report.html", tmp_path / "tables"
    assert gpuscope("analyze", trace, "--html", html, "--csv", csv).returncode == 0
    assert "launch" in html.read_text()
    assert pd.read_csv(csv / "ranks.csv")["breakdown_ns.idle"].tolist() == [20_000]
    html.write_text("mine")
    done = gpuscope("analyze", trace, "--html", html)
    assert (done.returncode, html.read_text()) == (2, "mine")
    assert "--force" in done.stderr


def test_fail_on_severity(trace: Path) -> None:
    assert gpuscope("analyze", trace, "--fail-on", "high").returncode == 1  # 18 % is high
    healthy = write(trace.parent / "healthy" / "rank0.json", call(-5, 2, 1), kernel(0, 80, 1))
    assert gpuscope("analyze", healthy, "--fail-on", "low").returncode == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["analyze"], 2),
        (["analyze", "no/such/file.json"], 3),
        (["analyse"], 2),
        (["analyze", "{trace}", "--ranks", "7-3"], 2),
        (["analyze", "{trace}", "--ranks", "5"], 3),
        (["analyze", "{trace}", "--steps", "100-200"], 2),
        (["info", "{trace}", "--nonsense"], 2),
        (["analyze", __file__], 3),
        (["analyze", "{trace}", "--html", "{trace}.html", "--share", "{trace}.html"], 2),
        (["again", "{loop}"], 3),
        (["record", "-o", "{loop}", "--", "true"], 3),
    ],
)
def test_exit_codes_without_traceback(trace: Path, args: list[str], code: int) -> None:
    loop = trace.with_name("loop")
    loop.symlink_to("loop")
    done = gpuscope(*(arg.format(trace=trace, loop=loop) for arg in args))
    assert done.returncode == code, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_ranks_that_are_absent_are_told(trace: Path) -> None:
    report = json.loads(gpuscope("analyze", trace, "--ranks", "0,9", "--json").stdout)
    assert [p["message"] for p in report["problems"] if p["code"] == "ranks_absent"] == [
        "ranks asked for that are in no file: 9"
    ]


def test_empty_tables_keep_their_columns(trace: Path, tmp_path: Path) -> None:
    gpuscope("analyze", trace, "--csv", tmp_path / "tables")
    assert "caused_wait_ns" in pd.read_csv(tmp_path / "tables" / "stragglers.csv").columns


def test_info(trace: Path) -> None:
    facts = json.loads(gpuscope("info", trace, "--json").stdout)
    assert facts["ranks"][0]["device_events"] == 2
    assert facts["ranks"][0]["window_ns"] == 110_000
    assert any("no steps" in sentence for sentence in facts["missing"])
    assert "rank0.json: kineto" in gpuscope("info", trace).stdout


def test_convert(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    one, folder = tmp_path / "events.parquet", tmp_path / "tables"
    assert gpuscope("convert", trace, one).returncode == 0
    events = pd.read_parquet(one)
    assert events["start"].is_monotonic_increasing
    assert events["table"].value_counts().to_dict() == {"device_events": 2, "host_events": 2}
    assert gpuscope("convert", trace, folder).returncode == 0
    assert pd.read_parquet(folder / "device_events.parquet")["end"].tolist() == [80_000, 110_000]
    assert gpuscope("convert", trace, one).returncode == 2
    assert gpuscope("convert", trace, tmp_path / "x.parquet", "--table", "nonsense").returncode == 2


def test_perfetto_keeps_every_nanosecond(tmp_path: Path) -> None:
    """Two ranks in one file; times are relative to the first event, launches are joined by arrows."""
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", call(5, 2, 1), kernel(10.125, 80.375, 1), rank=rank, world_size=2)
    out = tmp_path / "merged.json.gz"
    assert gpuscope("export", tmp_path, "--perfetto", out).returncode == 0
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "compute"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in kernels] == [(0, 5.125, 80.375), (1, 5.125, 80.375)]
    assert [event["ph"] for event in events if event.get("cat") == "launch"] == ["s", "f", "s", "f"]


def test_names_from_traces_are_never_terminal_commands(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07<script>alert(1)</script>[bold]"
    path = write(tmp_path / "rank0.json", kernel(0, 80, name=hostile), kernel(100, 10, name=hostile))
    done = gpuscope("analyze", path, "--full", "--html", tmp_path / "r.html")
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout
    assert "<script>alert" not in (tmp_path / "r.html").read_text()
    (tmp_path / "\x1b[31mred.json").touch()
    assert "\\x1b[31mred.json: is empty" in gpuscope("analyze", tmp_path / "\x1b[31mred.json").stderr


def test_the_input_is_never_the_output(trace: Path) -> None:
    before = trace.read_bytes()
    for command in (
        ["analyze", trace, "--html", trace],
        ["analyze", trace.parent, "--html", trace],
        ["export", f"{trace.parent}/*.json", "--perfetto", trace],
        ["export", trace, "--perfetto", trace],
        ["convert", trace, trace],
    ):
        done = gpuscope(*command, "--force")
        assert done.returncode == 2
        assert "is the input" in done.stderr
    assert trace.read_bytes() == before


def test_a_link_is_written_through_and_devices_are_refused(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    assert gpuscope("analyze", trace, "--html", tmp_path / "link.html").returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 1000
    os.mkfifo(tmp_path / "pipe")
    assert gpuscope("analyze", trace, "--html", tmp_path / "pipe", "--force").returncode == 2


def test_a_reader_that_goes_away_is_no_finding(trace: Path) -> None:
    """Exit 141 as after SIGPIPE: 1 is what --fail-on means."""
    for command in ("analyze", "info"):
        shell = f"{sys.executable} -m gpuscope {command} {trace} | true; exit ${{PIPESTATUS[0]}}"
        assert subprocess.run(["bash", "-c", shell], check=False, capture_output=True).returncode == 141


def test_a_full_disk_on_stdout(trace: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "gpuscope", "analyze", str(trace), "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
