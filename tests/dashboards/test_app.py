"""The application: what is served, what pages say of bad input, and that two applications share nothing."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.dashboards import request_of, viewer

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.app import ASSETS, draw
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, open_run
from gpuscope.dashboards.figures.heatmap_figure import plain
from gpuscope.dashboards.state import View
from gpuscope.dashboards.ui import Shown, pages
from gpuscope.dashboards.web.server import address, listen
from gpuscope.dashboards.web.timeline_data import address as data_address
from gpuscope.errors import InputError, UsageError
from gpuscope.report.read_report import dumps


def test_everything_a_page_loads_comes_from_here(pair: OpenRun) -> None:
    answer = viewer(pair).get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'sha256-" in policy
    page = answer.get_data(as_text=True)
    assert 'src="http' not in page
    assert 'href="http' not in page


@pytest.mark.parametrize(
    "path",
    [
        "/download/2/../../etc/passwd",
        "/download/2/%2e%2e%2fsecret.csv",
        "/download/9/ranks.csv",
        "/download/2/nope.csv",
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
        "/download/9/perfetto.json.gz",
    ],
)
def test_nothing_else_is_served(pair: OpenRun, path: str) -> None:
    answer = viewer(pair).get(path)
    # Any other address is the application itself, which says that there is no such page.
    assert answer.status_code == 404 or b"react-entry-point" in answer.data


def test_a_section_as_csv(pair: OpenRun) -> None:
    answer = viewer(pair).get("/download/2/ranks.csv")
    head, first, *_ = answer.get_data(as_text=True).splitlines()
    assert head.startswith("rank,device,")
    assert first.startswith("0,0,")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="ranks.csv"'


def test_pages_without_data_are_told(slow_rank: OpenRun) -> None:
    bare = replace(
        slow_rank, events=None, report={**slow_rank.report, "kernels": [], "collectives": [], "bandwidth": []}
    )
    lost = {one.path for one in pages() if one.has(slow_rank) and not one.has(bare)}
    assert lost == {"/timeline", "/kernels", "/communication"}


def test_two_dashboards_share_nothing(pair: OpenRun, slow_rank: OpenRun) -> None:
    first, second = viewer(pair), viewer(slow_rank, token="another")
    assert first.get("/download/2/ranks.csv").status_code == 200
    assert second.get("/download/2/ranks.csv").status_code == 404
    assert second.get("/download/1/ranks.csv").status_code == 200


def test_a_report_alone_says_what_to_open_for_events(pair: OpenRun, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(dumps(pair.report), encoding="utf-8")
    run = open_run("1", str(path), Options())
    assert run.report["ranks"] == pair.report["ranks"]
    shown = Shown(run, View(), Runs([run]), dark=False)
    assert "open the trace itself" in str(draw("/timeline", shown))
    for page in pages():
        assert "can't be drawn" not in str(draw(page.path, shown))


def test_another_job_is_compared_only_where_it_is_asked_for(slow_rank: OpenRun, pair: OpenRun) -> None:
    larger = {**pair.report["trace"], "world_size": 8, "world_basis": "distributed_info"}
    pair = replace(pair, report={**pair.report, "trace": larger})  # type: ignore[typeddict-item]
    runs = Runs([slow_rank, pair])
    unasked = str(draw("/compare", Shown(slow_rank, View(), runs, dark=False)))
    assert f"with={pair.key}" in unasked
    assert "Different jobs" not in unasked
    assert "No run of the same job" in unasked
    assert not any(word in unasked for word in ("eutral", "mprovement", "egression"))
    asked = str(draw("/compare", Shown(slow_rank, View(extra={"with": pair.key}), runs, dark=False)))
    assert "Different jobs" in asked
    assert "eutral" not in asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": 2, "gpuscope_version": "0.1.0"}', "without analyzers"),
        ('{"schema_version": 1, "gpuscope_version": "0.1.0"}', "a report of schema 1"),
        ('{"schema_version": 1, "gpuscope_version": "0.1.0", "ranks": [', "not valid JSON"),
    ],
)
def test_a_report_that_is_cut_off_or_old_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        open_run("1", str(tmp_path / "report.json"), Options())


def test_an_unknown_page_or_rank_is_reported(pair: OpenRun) -> None:
    shown = Shown(pair, View("2", ranks=frozenset({5})), Runs([pair]), dark=False)
    drawn = str(draw("/nowhere", shown)) + str(draw("/", shown))
    for message in ("There is no page /nowhere", "This run has no rank 5"):
        assert message in drawn


@pytest.mark.parametrize("run", ["0", "9", "-1", "02", "%3Cb%3E"])
def test_a_run_that_is_not_open_is_shown_nowhere(pair: OpenRun, run: str) -> None:
    """Every page says so, and none shows another run; nor does any download."""
    client = viewer(pair)
    verdict = pair.report["verdict"]["why"]
    for page in pages():
        answer = request_of(client, f"?run={run}", page.path)
        assert answer.status_code == 200
        drawn = answer.get_json()["response"]
        assert drawn["filter-run"]["value"] is None
        assert f"No run {unquote(run)} is open" in json.dumps(drawn)
        assert pair.label in json.dumps(drawn)  # which one is
        assert verdict not in json.dumps(drawn)
    for path in (f"/download/{run}/ranks.csv", f"/download/{run}/perfetto.json.gz", f"{data_address(run)}/cells"):
        answer = client.get(path)
        assert (answer.status_code, answer.content_type) == (404, "text/plain; charset=utf-8"), path
        assert f"No run {unquote(run)} is open" in answer.get_data(as_text=True)
        assert pair.label in answer.get_data(as_text=True)


@pytest.mark.parametrize(
    ("path", "query", "key"),
    [
        ("/compare", "?run=1&with=9", "with"),
        ("/compare", "?run=1&past=9", "past"),
        ("/timeline", "?finding=99", "finding"),
    ],
)
def test_an_index_of_nothing_is_named(pair: OpenRun, slow_rank: OpenRun, path: str, query: str, key: str) -> None:
    drawn = json.dumps(request_of(viewer(slow_rank, pair), query, path).get_json())
    assert f"\\u00ab{key}\\u00bb in this address is ignored" in drawn


def test_a_link_out_of_the_assets_is_not_served(pair: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    shutil.copytree(ASSETS, assets)
    (tmp_path / "secret.txt").write_text("a secret")
    (assets / "secret.txt").symlink_to(tmp_path / "secret.txt")
    (assets / "folder").symlink_to(tmp_path)
    (assets / "loop").symlink_to("loop")
    monkeypatch.setattr("gpuscope.dashboards.app.ASSETS", assets.resolve())
    client = viewer(pair)
    assert client.get("/assets/gpuscope.js").status_code == 200
    for name in ("secret.txt", "folder/secret.txt", "loop", "timeline", "%00", "x" * 5000):
        assert client.get(f"/assets/{name}").status_code == 404, name


def test_no_file_of_the_working_folder_is_served(
    pair: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package is not called as its folder in the repository: as installed."""
    for folder in ("assets", "static"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.js").write_text("window.foreign = true")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if not (Path(entry) / "dashboards").is_dir()])
    client = viewer(pair)
    assert "/assets/x.js" not in client.get("/").get_data(as_text=True)
    assert client.get("/assets/gpuscope.js").status_code == 200
    for folder in ("assets", "static"):
        assert b"foreign" not in client.get(f"/{folder}/x.js").data


def test_a_page_that_breaks_says_so(pair: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = type(pages()[0])("/broken", "Broken", 99, lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr("gpuscope.dashboards.app.pages", lambda: (broken,))
    assert "ZeroDivisionError" in str(draw("/broken", Shown(pair, View(), Runs([pair]), dark=False)))


def test_a_port_in_use_is_an_error_with_a_hint() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use") as error, listen("127.0.0.1", port):
            pass
        assert "--port" in str(error.value)
    with listen("127.0.0.1", 0) as server:
        assert address("127.0.0.1", server.port, "a b") == f"http://127.0.0.1:{server.port}/?token=a+b"


def test_names_are_plain_text() -> None:
    assert plain("<b>&\x1b[0m") == "&lt;b&gt;&amp;\\x1b[0m"


def test_no_state_is_in_a_module(pair: OpenRun) -> None:
    """What a viewer is shown depends on the address and the run alone: drawing one view does not change another."""
    runs = Runs([pair])
    shown = Shown(pair, View(ranks=frozenset({0})), runs, dark=False)
    before = json.dumps(draw("/", shown).to_plotly_json(), default=str)
    for page in pages():
        draw(page.path, Shown(pair, View(ranks=frozenset({1}), steps=(1, 1)), runs, dark=True))
    assert json.dumps(draw("/", shown).to_plotly_json(), default=str) == before
