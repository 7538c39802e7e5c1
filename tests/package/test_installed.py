"""The wheel where nothing of the repository is: in an environment of its own, in a folder of somebody else's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.browser import Browser
from helpers.wheel import ROOT, Installed

from gpuscope.plugins import own_commands
from gpuscope.version import __version__

pytest.importorskip("hatchling")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

TOP = ("analyzers", "dashboards", "instrumented_runtime")
FOREIGN = ("assets", "static")
"""Folders that web frameworks serve of their own accord."""
STYLED = "return getComputedStyle(document.querySelector('.frame, .live')).display"


@pytest.fixture
def working(tmp_path: Path) -> Path:
    """A working folder whose files lie where a web framework looks for its own."""
    (tmp_path / "secret.txt").write_text("a secret", encoding="utf-8")
    for name in FOREIGN:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.js").write_text("window.foreign = true", encoding="utf-8")
        (folder / "x.css").write_text("main { display: none }", encoding="utf-8")
        (folder / "secret.txt").symlink_to(tmp_path / "secret.txt")
    return tmp_path


def test_only_gpuscope_can_be_imported(installed: Installed, tmp_path: Path) -> None:
    assert installed.files == {"gpuscope", f"gpuscope-{__version__}.dist-info"}
    code = "import gpuscope.analyzers as found, sys; print(found.__file__, *sys.path, sep='\\n')"
    where, *path = installed.run(installed.python, "-c", code, at=tmp_path).stdout.split()
    assert where == str(installed.site / "gpuscope" / "analyzers" / "__init__.py")
    assert str(ROOT) not in path
    for name in TOP:
        done = installed.run(installed.python, "-c", f"import {name}", at=tmp_path)
        assert f"No module named '{name}'" in done.stderr


def test_every_command_runs(installed: Installed, tmp_path: Path) -> None:
    helped = installed.run(installed.program, "--help", at=tmp_path).stdout
    commands = re.findall(r"^  ([a-z]+)  ", helped.partition("Commands:")[2], re.MULTILINE)
    assert set(commands) == set(own_commands())
    for command in commands:
        done = installed.run(installed.program, command, "--help", at=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.startswith(f"Usage: gpuscope {command}")


@pytest.mark.parametrize("walk", ["analyse", "dashboard", "mcp", "record"])
def test_the_walk_of_a_release(installed: Installed, samples: Path, working: Path, walk: str) -> None:
    """What `make release` tries with other libraries: all that reads files of its own finds them."""
    pytest.importorskip({"dashboard": "dash", "mcp": "mcp", "record": "torch"}.get(walk, "gpuscope"))
    done = installed.run(installed.python, "-I", ROOT / "release" / f"walk_{walk}.py", samples, "short", at=working)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_report_as_a_page(installed: Installed, samples: Path, working: Path, browser: Browser) -> None:
    analyse = (installed.program, "analyze", samples / "ddp_slow_rank", "--html", "report.html")
    assert installed.run(*analyse, at=working).returncode == 0
    browser.errors()
    browser.driver.get((working / "report.html").as_uri())
    assert browser.driver.find_elements("css selector", "svg")
    assert browser.errors() == []


@contextmanager
def served(installed: Installed, working: Path, *arguments: str | Path) -> Iterator[str]:
    """The address, with its token, that `gpuscope dashboard` prints when it is started in the folder `working`."""
    command = [installed.program, "dashboard", *arguments, "--port", "0"]
    environment = installed.environment(working)
    with subprocess.Popen(command, cwd=working, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()


def is_served(browser: Browser, path: str) -> bool:
    """Whether the dashboard on the screen answers with a file; an address of none is the application itself."""
    status, text = browser.driver.execute_async_script(
        "fetch(arguments[0]).then(async r => arguments[1]([r.status, await r.text()]))", path
    )
    return status == 200 and "react-entry-point" not in text


def test_the_dashboard_has_its_files_and_no_others(
    installed: Installed, samples: Path, working: Path, browser: Browser
) -> None:
    pytest.importorskip("dash")
    with served(installed, working, samples / "ddp_slow_rank", samples / "ddp_healthy") as address:
        browser.errors()
        browser.driver.get(address)
        browser.drawn("/")
        place = address.partition("/?")[0]
        paths = browser.script("return [...document.querySelectorAll('nav a')].map(a => new URL(a.href).pathname)")
        assert len(paths) >= 9
        for path in paths:
            browser.open(f"{place}{path}?run=1", path, anew=path == paths[-1])  # loads all by itself on one page
            assert "can't be drawn" not in browser.text()
            assert browser.script(STYLED) == "grid", path
            assert browser.script("return typeof window.gpuscopeTimeline?.mount") == "function"
            assert browser.script("return window.foreign") is None
        assert browser.errors() == []
        for folder in FOREIGN:
            for name in ("x.js", "x.css", "secret.txt", "../secret.txt", "%2e%2e/secret.txt"):
                assert not is_served(browser, f"/{folder}/{name}")
        browser.errors()  # what was refused; other tests use this browser too


def test_a_run_that_is_followed_has_them_too(
    installed: Installed, working: Path, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("dash")
    run = tmp_path_factory.mktemp("run")
    (run / "manifest.json").write_text('{"run_id": "r", "status": "running"}', encoding="utf-8")
    with served(installed, working, run, "--watch") as address:
        browser.errors()
        browser.driver.get(address)
        browser.wait(lambda: "last step of all ranks" in browser.text("main") or "no manifest" in browser.text("main"))
        assert browser.script("return [...document.styleSheets].some(s => (s.href || '').includes('gpuscope.css'))")
        assert browser.errors() == []
        for folder in FOREIGN:
            assert not is_served(browser, f"/{folder}/x.js")
            assert not is_served(browser, f"/{folder}/secret.txt")
        browser.errors()
