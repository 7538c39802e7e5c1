"""`gpuscope diff` and `gpuscope check` as CI calls them: exit codes, files, annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.cli import Done, call
from helpers.reports import report

from gpuscope.report.read_report import dumps

STEADY = (99.0, 100.0, 101.0, 100.0, 99.0, 101.0)
INPUT = {
    "code": "input",
    "severity": "high",
    "message": "waits",
    "ranks": [0],
    "cost_ns_per_step": 1,
    "cost_ns": 6,
    "share_frac": 0.2,
    "evidence": [],
}


Call = Callable[..., Done]


@pytest.fixture
def gpuscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return lambda *args: call(capsys, *args)


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    path.write_text(dumps(report(*STEADY)))
    return path


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """10 % slower, to within 1.44 %; and it waits for its data."""
    path = tmp_path / "slower.json"
    path.write_text(dumps(report(*(ms + 10 for ms in STEADY), findings=[INPUT])))
    return path


def test_diff(gpuscope: Call, baseline: Path, slower: Path) -> None:
    done = gpuscope("diff", baseline, slower)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Regression: step 100.0 ms → 110.0 ms, +10.0 %")
    document = json.loads(gpuscope("diff", slower, baseline, "--json").stdout)
    assert (document["verdict"]["result"], document["findings"]["gone"]) == ("improvement", ["input"])


def test_check_fails_beyond_the_uncertainty_only(gpuscope: Call, baseline: Path, slower: Path) -> None:
    """+10 % ± 1.44 %: more than 5 % for sure, not more than 10 %, and certainly not more than 20 %."""
    codes = {
        limit: gpuscope("check", slower, "--baseline", baseline, "--fail-on", limit).returncode
        for limit in ("5%", "10%", "20%")
    }
    assert codes == {"5%": 1, "10%": 0, "20%": 0}
    done = gpuscope("check", slower, "--baseline", baseline, "--fail-on", "10%", "--strict")
    assert (done.returncode, "inconclusive" in done.stdout) == (1, True)


def test_check_of_new_findings(gpuscope: Call, baseline: Path, slower: Path) -> None:
    asked = ("--fail-on", "20%", "--fail-on-finding", "high")
    assert gpuscope("check", slower, "--baseline", baseline, *asked).returncode == 1
    like = slower.with_name("like.json")
    like.write_bytes(slower.read_bytes())
    assert gpuscope("check", slower, "--baseline", like, *asked).returncode == 0


def test_junit(gpuscope: Call, baseline: Path, slower: Path, tmp_path: Path) -> None:
    path = tmp_path / "checks.xml"
    args = ("check", slower, "--baseline", baseline, "--fail-on-finding", "high", "--junit", path)
    assert gpuscope(*args).returncode == 1
    [suite] = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert "+10.0 %" in str(suite[0][0].get("message"))
    path.write_text("mine")
    assert (gpuscope(*args).returncode, path.read_text()) == (2, "mine")


def test_annotations_where_github_runs_it(
    gpuscope: Call, baseline: Path, slower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpuscope("check", slower, "--baseline", baseline).stderr == ""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    said = gpuscope("check", slower, "--baseline", baseline, "--json")
    assert said.stderr.startswith("::error title=gpuscope%3A step time::Regression: step 100.0 ms")
    assert "+10.0 %25" in said.stderr
    assert json.loads(said.stdout)["checks"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["diff", "{baseline}"], 2),
        (["diff", "{baseline}", "no/such"], 3),
        (["diff", "{baseline}", "{slower}", "--suggestion", "x"], 2),
        (["diff", "{baseline}", "{slower}", "--steps", "1-2"], 2),
        (["check", "{baseline}"], 2),
        (["check", "{baseline}", "--baseline", "{slower}", "--fail-on", "0.05"], 2),
        (["diff", "1", "{baseline}", "--store", "no/such.db"], 3),
    ],
)
def test_exit_codes_without_traceback(gpuscope: Call, baseline: Path, slower: Path, args: list[str], code: int) -> None:
    done = gpuscope(*(arg.format(baseline=baseline, slower=slower) for arg in args))
    assert done.returncode == code, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("one", "other"), [("4", "4"), ("4", "#4"), ("{run}", "{again}")])
@pytest.mark.parametrize("command", ["diff", "check"])
def test_a_run_is_not_compared_with_itself(
    gpuscope: Call, baseline: Path, tmp_path: Path, command: str, one: str, other: str
) -> None:
    again = tmp_path / "." / "again.json"
    again.symlink_to(baseline)
    one, other = (text.format(run=baseline, again=again) for text in (one, other))
    done = gpuscope(command, one, *(["--baseline"] if command == "check" else []), other)
    assert (done.returncode, done.stdout, "the same run" in done.stderr) == (2, "", True)
