"""`import gpuscope`: what it offers, that it costs nothing until used, and that scripts get what the commands get."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from enum import EnumType
from pathlib import Path

import pytest
from helpers.cli import call
from helpers.reports import report

import gpuscope
from gpuscope.analyzers.comparison.comparison import SECTIONS as CHANGE_SECTIONS
from gpuscope.analyzers.comparison.comparison import ChangeTables
from gpuscope.analyzers.run.analysis import SECTIONS, Analysis, RunTables

ROOT = Path(__file__).resolve().parents[2]
STEADY = (99.0, 100.0, 101.0, 100.0, 99.0, 101.0)


def declared() -> dict[str, str]:
    """What `if TYPE_CHECKING` of the facade imports: the public name, and where it lives."""
    tree = ast.parse((ROOT / "gpuscope" / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_see_what_is_imported() -> None:
    found = declared()
    assert [name for name in found if getattr(gpuscope, name, None) is None] == []
    modules = {
        name: home.replace(":", ".") for name, home in found.items() if inspect.ismodule(getattr(gpuscope, name))
    }
    assert found | modules == gpuscope._HOME


def test_everything_is_listed_once() -> None:
    assert sorted(gpuscope.__all__) == gpuscope.__all__ == dir(gpuscope)
    assert set(gpuscope.__all__) == {*gpuscope._HOME, "__version__"}


def test_no_such_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        gpuscope.analyse  # noqa: B018


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        (lambda _: gpuscope.analyse, "analyze"),  # type: ignore[attr-defined]
        (lambda _: gpuscope.figures.kernel, "kernels"),  # type: ignore[attr-defined]
        (lambda analysis: analysis.kernel, "kernels"),
        (lambda analysis: analysis.verdikt, "verdict"),
        (lambda analysis: analysis.tables.kernel, "kernels"),
        (lambda analysis: gpuscope.diff(analysis, analysis).cause, "causes"),
    ],
)
def test_a_misspelt_name_says_which_was_meant(misspelt, meant: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AttributeError, match=f"did you mean '{meant}'"):
        misspelt(Analysis(report(*STEADY)))


def test_every_table_is_an_attribute() -> None:
    analysis = Analysis(report(*STEADY))
    assert [*RunTables.__annotations__] == [*SECTIONS]
    assert [*ChangeTables.__annotations__] == [*CHANGE_SECTIONS]
    assert {*analysis.tables} <= {*dir(analysis)}
    for name in analysis.tables:
        assert getattr(analysis, name).equals(analysis.tables[name])
        assert getattr(analysis.tables, name).equals(analysis.tables[name])
    assert (analysis.verdict, analysis.step_ns) == (analysis.report["verdict"], 100_000_000)
    with pytest.raises(AttributeError, match="no such section"):
        analysis.bandwidth  # noqa: B018
    assert not hasattr(analysis, "memory")
    assert copy.deepcopy(analysis).report == pickle.loads(pickle.dumps(analysis)).report == analysis.report


def test_only_what_is_meant_for_users_is_listed() -> None:
    assert dir(gpuscope.figures) == sorted(gpuscope.figures.__all__)
    assert {type(getattr(gpuscope.changes, name)) for name in dir(gpuscope.changes)} <= {type, EnumType}


def test_a_comparison_in_a_notebook() -> None:
    page = gpuscope.diff(Analysis(report(*STEADY)), Analysis(report(*(2 * step for step in STEADY))))._repr_html_()
    assert page.startswith("<div")
    assert "100.0 ms → 200.0 ms" in page


def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import gpuscope; dir(gpuscope); repr(gpuscope)\n"
        "loaded = {name for name in set(sys.modules) - before if '.' not in name} - set(sys.stdlib_module_names)\n"
        "print(*sorted(loaded), '-', *sorted(name for name in sys.modules if name.startswith('gpuscope.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "gpuscope - gpuscope.version\n"


# ---- without torch ----


def without_torch(code: str, cwd: Path) -> str:
    blocked = "import sys; sys.modules['torch'] = sys.modules['nvtx'] = None\nimport gpuscope\n"
    done = subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=True, cwd=cwd)
    return done.stdout


@pytest.mark.parametrize("caught", ["gpuscope.UsageError", "ImportError"])
def test_a_session_without_torch_names_the_extra(caught: str, tmp_path: Path) -> None:
    code = f"try:\n    gpuscope.session('run')\nexcept {caught} as error:\n    print(error)\n"
    said = without_torch(code, tmp_path)
    assert said.startswith("this needs torch, which is not installed\nHint: pip install '")
    assert "'torch>=" in said
    assert list(tmp_path.iterdir()) == []


def test_ranges_stay_in_a_script_without_torch(tmp_path: Path) -> None:
    code = (
        "from gpuscope import *\n"
        "with span('forward', step=1):\n"
        "    print('ran')\n"
        "print(span('step')(lambda: 'called')())"
    )
    assert without_torch(code, tmp_path) == "ran\ncalled\n"


# ---- short representations ----


def bound(bound_by: str | None, cause: str | None, share: float) -> Analysis:
    """A run of two ranks, six steps of 100 ms; the straggler of rank 0 costs 150 of 1200 ms."""
    made = report(*STEADY)
    made["verdict"] |= {"bound_by": bound_by, "cause": cause, "share_frac": share, "abstained": bound_by is None}  # type: ignore[typeddict-item]
    made["ranks"][0]["stall_ns"]["communication"] = {"straggler": 150_000_000}
    return Analysis(made)


@pytest.mark.parametrize(
    ("analysis", "said"),
    [
        (bound("communication", "straggler", 0.2), "communication-bound by straggler 12.5 %, 2 ranks, step 100.0 ms"),
        (bound("communication", None, 0.2), "communication-bound 20.0 %, 2 ranks, step 100.0 ms"),
        (bound("compute", None, 0.875), "compute-bound 87.5 %, 2 ranks, step 100.0 ms"),
        (bound(None, None, 0.0), "no verdict, 2 ranks, step 100.0 ms"),
        (Analysis(report(ranks=1)), "compute-bound 100 %, 1 rank, window 50.00 ms"),
    ],
)
def test_an_analysis_in_short(analysis: Analysis, said: str) -> None:
    assert repr(analysis) == f"Analysis({said})"


def test_a_trace_in_short(samples: Path) -> None:
    trace = gpuscope.open_trace(samples / "ddp_healthy", ranks=[1])
    counts = [len(trace.tables[name]) for name in ("device_events", "host_events")]
    said = f"Trace(1 rank from 1 file (kineto), {counts[0]:,} device_events, {counts[1]:,} host_events)"
    assert repr(trace) == said


def test_a_comparison_in_short() -> None:
    same = Analysis(report(*STEADY))
    # Of medians of six, whose efficiency is 0.776: 2.228 · √(2 · 0.8 / 6) / √0.776 = 1.31
    said = "Comparison(neutral: step 100.0 ms → 100.0 ms, +0.0 % (-1.3 % to +1.3 %))"
    assert repr(gpuscope.diff(same, same, threshold=0.02)) == said
    assert repr(gpuscope.check(same, baseline=same)) == "CheckResult(step time passed)"


def test_a_plan_in_short() -> None:
    plan = gpuscope.advise("gpt2-xl", "8xA100", limit=1)
    own = plan.document
    said = f"gpt2-xl on 1 x 8 A100: {own['candidates'][0]['name']}; {own['feasible']} of {own['considered']} fit"
    assert repr(plan) == f"ParallelismPlan({said})"
    nothing = gpuscope.advise("llama-3.1-405b", "8xH100")
    assert (nothing.best, "nothing fits; 0 of" in repr(nothing)) == (None, True)


# ---- a script gets what the command line gets ----


def test_diff_as_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = samples / "ddp_healthy", samples / "ddp_slow_rank"
    printed = json.loads(call(capsys, "diff", before, after, "--json", "--threshold", "3%").stdout)
    assert gpuscope.diff(before, after, threshold=0.03).document == printed
    assert gpuscope.diff(gpuscope.analyze(before), gpuscope.analyze(after), threshold=0.03).document == printed


def test_check_as_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = samples / "ddp_healthy", samples / "ddp_slow_rank"
    done = call(capsys, "check", after, "--baseline", before, "--fail-on-finding", "high", "--json")
    result = gpuscope.check(after, baseline=before, fail_on_finding="high")
    assert result.comparison.document == json.loads(done.stdout)
    assert (result.failed, done.returncode) == (True, 1)
    assert result.comparison.tables["checks"]["status"].tolist() == [case["status"] for case in result.cases]


def test_advise_as_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = (
        "--model",
        "llama-3-8b",
        "--cluster",
        "2x8xL40S",
        "--network",
        "ethernet_100",
        "--gpu-memory",
        "40",
        "-n",
        "2",
    )
    printed = json.loads(call(capsys, "advise", *args, "--json").stdout)
    plan = gpuscope.advise("llama-3-8b", "2x8xL40S", network="ethernet_100", gpu_memory=40, limit=2)
    assert json.loads(json.dumps(plan.document)) == printed
    assert plan.tables["candidates"]["estimate_ns"].tolist() == [row["estimate_ns"] for row in printed["candidates"]]


def test_analyze_as_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = samples / "ddp_slow_loader"
    printed = json.loads(call(capsys, "analyze", path, "--steps", "4-5", "--json").stdout)
    assert json.loads(json.dumps(gpuscope.analyze(path, steps=(4, 5)).report)) == printed


def test_a_run_of_the_store_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuscope.store.store import opened

    store = tmp_path / "runs.db"
    with opened(store, write=True) as open_store:
        number = open_store.add(report(*STEADY), "k", [], {})
    monkeypatch.setenv("GPUSCOPE_STORE", str(store))
    named = gpuscope.diff(number, f"#{number}").document
    assert (named["before"]["run"], named["after"]["run"], named["step"]["change_ns"]) == (number, number, 0)


# ---- wrong use ----


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda run: gpuscope.diff(run, run, threshold=-0.1), "threshold=-0.1 is no fraction"),
        (lambda run: gpuscope.diff(run, run, steps=(1, 2)), "finished report"),
        (lambda run: gpuscope.diff(run, run, suggestion="x"), "does not suggest 'x'"),
        (lambda run: gpuscope.check(run, baseline=run, fail_on=float("nan")), "fail_on=nan is no fraction"),
        (lambda run: gpuscope.check(run, baseline=run, fail_on_finding="grave"), "'grave' is no severity"),
        (lambda _: gpuscope.advise("llama-3-8b", "8xH100", global_batch=0), "global_batch=0 must be at least 1"),
        (lambda _: gpuscope.advise("llama-3-8b", "8xH100", limit=-1), "limit=-1 must be at least 1"),
        (lambda run: run.predict(), "nothing to predict"),
    ],
)
def test_wrong_use(wrong, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(gpuscope.UsageError, match=said):
        wrong(Analysis(report(*STEADY)))


def test_a_failed_analysis_is_not_compared() -> None:
    whole = Analysis(report(*STEADY))
    broken = replace(whole, report={**whole.report, "analyzers": [{"name": "idle", "status": "failed", "why": "x"}]})
    with pytest.raises(gpuscope.AnalysisError, match="synthetic: an analysis failed: idle: x"):
        gpuscope.diff(whole, broken)


def test_predict_asks_the_replay(samples: Path) -> None:
    analysis = gpuscope.analyze(samples / "ddp_slow_rank")
    change = gpuscope.changes.ReplacedRank(1)
    assert analysis.replayer is not None
    assert analysis.predict(change) == analysis.replayer.predict(change)
    assert isinstance(analysis.predict(change), gpuscope.Predicted)
    assert isinstance(Analysis(analysis.report).predict(change), gpuscope.Refused)
