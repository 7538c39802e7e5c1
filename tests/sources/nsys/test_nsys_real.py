"""The real nsys (Debian's 2022.4.2, or newer), and other people's real files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from helpers import needs
from helpers.nsys import LOST_AGENT

import gpuscope
from gpuscope.errors import InputError
from gpuscope.trace.schema import Category, Kind
from gpuscope.trace.trace import Trace

needs_nsys = [
    pytest.mark.nsys,
    pytest.mark.skipif(shutil.which("nsys") is None, reason=needs.NSYS),
]


@pytest.fixture
def traces(shared_traces: Path) -> Path:
    return shared_traces / "nsys"


def breakdown_ms(trace: Trace, part: str) -> list[float]:
    return [getattr(trace.breakdown(lane.rows), part) / 1e6 for lane in trace.lanes()]


def busy(trace: Trace) -> float:
    (lane,) = trace.lanes()
    parts = trace.breakdown(lane.rows)
    return 1 - parts.idle / parts.window


def codes(trace: Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


@pytest.mark.parametrize(("which", "quoted"), [("before", 25.40), ("after", 33.74)])
def test_exposed_communication_as_published(traces: Path, which: str, quoted: float) -> None:
    """The publisher quotes 25.400 and 33.740 ms over both GPUs, which is two decimals: ours are 25.402 and
    33.742 ms, the sum of 66 and 62 kernels that nothing overlaps."""
    trace = gpuscope.open_trace(traces / "nsys-ai" / f"mfu_2gpu_{which}.sqlite")
    assert trace.ranks == [0, 1]
    exposed = breakdown_ms(trace, "exposed_communication")
    assert sum(exposed) == pytest.approx(quoted, abs=0.005)
    assert len(trace["collectives"]) == {"before": 66, "after": 62}[which]
    assert {"no_nccl_payloads", "cut_to_window"} <= codes(trace)


def test_busy_shares_as_computed(traces: Path) -> None:
    assert busy(gpuscope.open_trace(traces / "zx3xyy" / "result.sqlite")) == pytest.approx(0.17, abs=0.005)
    assert busy(gpuscope.open_trace(traces / "bolong" / "small_fwd_A100.sqlite")) == pytest.approx(0.76, abs=0.005)
    trace = gpuscope.open_trace(traces / "zx3xyy" / "result_2_7B_nvtx.sqlite")
    parts = trace.breakdown(trace.lanes()[0].rows)
    assert parts.exposed_memory / parts.window == pytest.approx(0.40, abs=0.005)


def test_unified_memory_migrations_counted_once(traces: Path) -> None:
    """2,370 migrations of 87 ms; what a running kernel hides of them is compute."""
    trace = gpuscope.open_trace(traces / "ynan1" / "report2.sqlite")
    kinds = Counter(trace.tables["device_events"]["copy_kind"].dropna())
    assert kinds == {
        "migration DtoH, page fault": 768,
        "migration DtoH, speculative prefetch": 768,
        "migration HtoD, user prefetch": 64,
        "migration HtoD, page fault": 385,
        "migration HtoD, speculative prefetch": 385,
    }
    (lane,) = trace.lanes()
    assert trace.spans(lane.rows, Kind.MEMORY).total / 1e6 == pytest.approx(86.7, abs=0.05)
    assert breakdown_ms(trace, "exposed_memory") == [pytest.approx(63.9, abs=0.05)]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("qcu/report1_mpirun_2023.3.sqlite", "the kernels that they launched were not recorded"),
        ("qcu/report8_python_2023.3.sqlite", "the kernels that they launched were not recorded"),
        ("centerformer/poolformer.sqlite", "does not say whether CUDA was traced"),
        ("ihor/result.sqlite", "no profiled process called it"),
    ],
)
def test_no_device_events_for_a_reason(traces: Path, path: str, said: str) -> None:
    trace = gpuscope.open_trace(traces / path)
    assert not len(trace["device_events"])
    assert trace.ranks == [0]
    assert len(trace["host_events"])
    assert said in next(problem.message for problem in trace.problems if problem.code == "no_device_events")


@pytest.mark.parametrize("path", ["fuser", "nsys-ai", "pipit", "bolong", "zx3xyy", "ynan1"])
def test_every_export_opens_and_nearly_every_kernel_has_its_launch(traces: Path, path: str) -> None:
    for file in sorted((traces / path).glob("*.sqlite")):
        trace = gpuscope.open_trace(file)
        device = trace.tables["device_events"]
        launched = device[~device["copy_kind"].astype("str").str.startswith("migration")]
        assert launched["launch"].notna().mean() > 0.99, file


def test_an_export_beside_its_report_serves_where_nsys_is_missing(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".nsys-rep", ".sqlite"):
        shutil.copy2(traces / "ynan1" / f"report2{suffix}", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert len(gpuscope.open_trace(tmp_path)["device_events"]) == 2371


class TestWithNsys:
    pytestmark = needs_nsys

    def test_reports_it_can_export(self, traces: Path, tmp_path: Path) -> None:
        for name in ("jax_profile_mem", "report1"):
            shutil.copy(traces / "alpa" / f"{name}.nsys-rep", tmp_path)
        jax = gpuscope.open_trace(tmp_path / "jax_profile_mem.nsys-rep")
        assert int((jax["device_events"]["kind"] == Kind.COMPUTE).sum()) == 14
        assert codes(jax) == {"invalid_utf8", "other_processes"}
        copies_only = gpuscope.open_trace(tmp_path / "report1.nsys-rep")
        assert set(copies_only["device_events"]["kind"]) == {Kind.MEMORY}

    def test_an_empty_capture_says_so(self, traces: Path, tmp_path: Path) -> None:
        shutil.copy(traces / "dynamicvit" / "nsys_profile.qdrep", tmp_path)
        with pytest.raises(InputError, match="an empty capture"):
            gpuscope.open_trace(tmp_path / "nsys_profile.qdrep")

    def test_a_newer_report_is_refused_in_its_own_words(self, traces: Path, tmp_path: Path) -> None:
        if not _version().startswith("2022"):
            pytest.skip("this nsys can read them")
        shutil.copy(traces / "zx3xyy" / "result.nsys-rep", tmp_path)
        with pytest.raises(InputError, match=r"Version number is invalid: 2024@6@2") as error:
            gpuscope.open_trace(tmp_path / "result.nsys-rep")
        assert "nsight-systems-2024.6.2 " in str(error.value.hint)

    @pytest.mark.slow
    def test_a_report_recorded_on_the_spot(self, tmp_path: Path) -> None:
        python = _python_with_nvtx(tmp_path / "venv")
        script = tmp_path / "app.py"
        script.write_text(
            textwrap.dedent("""
            import time, nvtx
            for step in range(4):
                with nvtx.annotate(f"step {step}"):
                    with nvtx.annotate("load", domain="mine"):
                        time.sleep(0.02)
            """)
        )
        output = tmp_path / "app.nsys-rep"
        _record([python, str(script)], output)
        trace = gpuscope.open_trace(output)
        host = trace.tables["host_events"]
        ranges = host[host["category"] == "annotation"]
        assert Counter(ranges["name"]) == {"step 0": 1, "step 1": 1, "step 2": 1, "step 3": 1, "load": 4}
        load = ranges[ranges["name"] == "load"]
        assert ((load["end"] - load["start"]) >= 20_000_000).all()
        assert (trace["host_events"]["category"] == Category.OS).any()
        assert trace.tables["steps"]["step"].tolist() == [0, 1, 2, 3]
        assert "no_device_events" in codes(trace)


def _version() -> str:
    said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=False).stdout
    return said.rsplit("version", 1)[-1].strip()


def _record(program: list[str], output: Path) -> None:
    """Record a program; again where nsys lost its own agent."""
    command = ["nsys", "profile", "-t", "nvtx,osrt", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", str(output)]
    for _ in range(3):
        run = subprocess.run([*command, *program], capture_output=True, text=True, timeout=120, check=False)
        if not any(words in run.stderr for words in LOST_AGENT):
            break
    assert run.returncode == 0, run.stderr


def _python_with_nvtx(folder: Path) -> str:
    """A Python with nvtx 0.2.10: under nsys 2022 later versions of nvtx record nothing."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    wanted = "nvtx==0.2.10" if _version().startswith("2022") else "nvtx"
    done = subprocess.run([python, "-m", "pip", "install", "-q", wanted], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{wanted} can't be installed: {done.stderr.strip()[-200:]}")
    return python
