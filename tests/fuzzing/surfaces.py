"""What is hostile besides traces: stored runs, kept objects, reports, manifests, requests, arguments."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import click

import gpuscope
from fuzzing import raw_bytes, values
from fuzzing.campaign import Tally
from fuzzing.judge import Outcome, judged
from fuzzing.seeds import kineto
from gpuscope.cli import cli, main
from gpuscope.report.read_report import dumps

Made = tuple[str, Callable[[], Outcome]]
"""What was done, and what to try with it."""
CODES = frozenset({0, 1, 2, 3, 4})
READ = Outcome("read")


def run(name: str, folder: Path, numbers: Iterable[int]) -> Tally:
    """The outcomes of these numbers on one surface."""
    tally, make = Tally(), SURFACES[name](folder)
    for number in numbers:
        what, act = make(Random(f"{name} {number}"))
        tally.add(name, number, what, judged(act))
    return tally


def called(*arguments: str) -> Outcome:
    """What the command line made of its arguments: a documented exit code, and no bug."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code or 0
    said = err.getvalue()
    if code not in CODES or "Traceback" in said or "Error: unexpected" in said:
        return Outcome("bad", f"exit {code}: {said.strip()[-300:]} from {' '.join(arguments)[:300]}")
    return READ if code in (0, 1) else Outcome("refused")


def _trace(folder: Path) -> Path:
    path = folder / "rank0.json"
    path.write_text(json.dumps(kineto(folder)))
    return path


def _store(folder: Path) -> Callable[[Random], Made]:
    """A store with a run, its bytes or its values changed."""
    whole, path = folder / "whole.db", folder / "runs.db"
    report = gpuscope.analyze(_trace(folder), advice=False).report
    from gpuscope.store.store import opened

    with opened(whole, write=True) as store:
        store.add(report, "key", ["rank0.json"], {})

    def make(random: Random) -> Made:
        if random.random() < 0.5:
            data, what = raw_bytes.mutated(whole.read_bytes(), random)
            path.write_bytes(data)
        else:
            shutil.copy(whole, path)
            what = _changed_row(path, random)

        def act() -> Outcome:
            with opened(path, write=random.random() < 0.5) as held:
                for row in held.runs():
                    held.report(int(row["id"]))
                if random.random() < 0.3:
                    with opened(path, write=True) as written:
                        written.add(report, "other", ["rank0.json"], {})
            return called("runs", "--store", str(path))

        return what, act

    return make


def _changed_row(path: Path, random: Random) -> str:
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = random.choice([name for name in tables if not name.startswith("sqlite")])
        column = random.choice([row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')])
        value = random.choice([None, "", "{", "[]", "{}", "5", "nan", -1, 2**62, 0.5, b"\xff"])
        connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', [value])
        connection.commit()
    except sqlite3.Error:
        return "value refused by SQLite"
    finally:
        connection.close()
    return f"value of {table} changed"


def _cache(folder: Path) -> Callable[[Random], Made]:
    """A kept trace, its bytes changed."""
    from gpuscope import cache

    whole, path = folder / "whole.kept", folder / "one.kept"
    with whole.open("wb") as file:
        cache.prepared(gpuscope.open_trace(_trace(folder)))(file)

    def make(random: Random) -> Made:
        data, what = raw_bytes.mutated(whole.read_bytes(), random)
        path.write_bytes(data)

        def act() -> Outcome:
            try:
                cache.read(path)
            except ValueError as error:
                return Outcome("refused", str(error))
            return READ

        return what, act

    return make


def _report(folder: Path) -> Callable[[Random], Made]:
    """A report in JSON, compared with the one it was made from."""
    whole, path = folder / "whole.json", folder / "other.json"
    document = json.loads(dumps(gpuscope.analyze(_trace(folder)).report))
    whole.write_text(json.dumps(document))

    def make(random: Random) -> Made:
        if random.random() < 0.7:
            changed, what = values.mutated(document, random)
            path.write_text(json.dumps(changed))
        else:
            data, what = raw_bytes.mutated(whole.read_bytes(), random)
            path.write_bytes(data)
        return what, lambda: called("diff", str(whole), str(path))

    return make


def _manifest(folder: Path) -> Callable[[Random], Made]:
    """The manifest of a run folder."""
    run_folder = folder / "run"
    run_folder.mkdir()
    _trace(run_folder)
    ranks = [{"rank": rank, "status": "failed", "error": "x", "ended_ns": 5 + rank} for rank in range(2)]
    whole = {
        "run_id": "a",
        "status": "failed",
        "world_size": 2,
        "mesh": {"dp": 2},
        "ranks": ranks,
        "problems": [{"severity": "error", "code": "hang", "message": "y"}],
        "attempt": 0,
        "files": [{"kind": "torch_profiler", "path": "rank0.json", "rank": 0}],
    }

    def make(random: Random) -> Made:
        changed, what = values.mutated(whole, random)
        text = json.dumps(changed).encode()
        if random.random() < 0.3:
            text, what = raw_bytes.mutated(text, random)
        (run_folder / "manifest.json").write_bytes(text)
        return what, lambda: called("analyze", str(run_folder), "--no-advice", "--json", "--no-store")

    return make


WORDS = [
    "0",
    "-1",
    "1",
    "99999999999999999999",
    "1.5",
    "nan",
    "",
    "ü\u2028",
    "a" * 3000,
    "../..",
    "/dev/null",
    "-",
    "--",
    "{",
    "1,2",
    "1-",
    "0-4294967295",
    "a=b",
    "train.cuda_graph=true",
    "8x",
    "h100",
    "none",
    "%s",
]
COMMANDS = ("advise", "analyze", "check", "convert", "diff", "export", "hang", "info", "reduce", "runs")
"""Those that end by themselves and write nothing but what they are told to."""
LEFT_OUT = frozenset({"--executor", "--nsys", "--jobs", "--debug", "--store", "--interval", "--follow", "--progress"})


def _arguments(folder: Path) -> Callable[[Random], Made]:
    """Options of the program's own, with values that may be none."""
    trace = _trace(folder)
    options = {name: list(_options(name)) for name in COMMANDS}

    def make(random: Random) -> Made:
        name = random.choice(COMMANDS)
        arguments = [name, *random.choice([[str(trace)], [str(trace), str(trace)], [], [str(folder)], ["none.json"]])]
        for option in random.sample(options[name], min(len(options[name]), random.choice([0, 1, 1, 2, 3]))):
            arguments.append(option.opts[-1])
            if not getattr(option, "is_flag", False):
                arguments.append(_value(option, random))

        def act() -> Outcome:
            with chdir(folder):
                return called(*arguments)

        return name, act

    os.environ["GPUSCOPE_STORE"] = str(folder / "runs.db")
    return make


def _options(name: str) -> Iterator[click.Parameter]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for parameter in command.params:
        if (
            isinstance(parameter, click.Option)
            and not LEFT_OUT & set(parameter.opts)
            and "--help" not in parameter.opts
        ):
            yield parameter


def _value(option: click.Parameter, random: Random) -> str:
    if isinstance(option.type, click.Choice) and random.random() < 0.7:
        return str(random.choice(list(option.type.choices)))
    return random.choice(WORDS)


def _requests(folder: Path) -> Callable[[Random], Made]:
    """Addresses and bodies sent to the dashboard of a run by somebody who has the token."""
    from helpers.dashboards import viewer

    from gpuscope.analyzers.run.runner import Options
    from gpuscope.dashboards.data.open_runs import open_run
    from gpuscope.dashboards.ui import pages
    from gpuscope.dashboards.web import timeline_data

    client = viewer(open_run("1", str(_trace(folder)), Options()))
    callbacks = client.get("/_dash-dependencies").get_json()
    downloads = ["/download/1/ranks.csv", "/download/1/perfetto.json.gz", "/download/2/x.csv", "/assets/../setup.py"]
    keys = ["run", "ranks", "from", "to", "level", "first", "last", "tracks", "find", "tree", "sort", "other", "theme"]

    def make(random: Random) -> Made:
        query = "&".join(
            f"{random.choice(keys)}={quote(random.choice([*WORDS, *map(str, range(5))])[:600])}"
            for _ in range(random.choice([0, 1, 2, 5]))
        )
        path = random.choice(
            [*(page.path for page in pages()), *downloads, "tiles", "tiles", "/%00", "//", "/a/b/c/../.."]
        )
        if path == "tiles":
            path = f"{timeline_data.address('1')}/cells"
            asked = {"level": 4, "first": 0, "last": 2, "tracks": "0-1"}
            asked |= {
                random.choice([*asked]): random.choice([*WORDS, "0", "1", "3"]) for _ in range(random.choice([0, 1, 2]))
            }
            query = "&".join(f"{key}={quote(str(value)[:600])}" for key, value in asked.items())
        if random.random() < 0.5:
            return f"GET {path}", lambda: _answered(client.get(f"{path}?{query}"))
        one = random.choice(callbacks)
        body = {
            "output": one["output"],
            "outputs": _outputs(one["output"]),
            "changedPropIds": ["drawn.data"],
            "inputs": [
                {**entry, "value": {"path": path, "search": f"?{query}", "theme": "light"}} for entry in one["inputs"]
            ],
            "state": [{**entry, "value": random.choice(values.ODD[:20])} for entry in one.get("state", [])],
        }
        changed, what = values.mutated(body, random)
        text = json.dumps(changed)
        return f"POST, {what}", lambda: _answered(
            client.post("/_dash-update-component", data=text, content_type="application/json")
        )

    return make


def _outputs(output: str) -> Any:
    if not output.startswith(".."):
        return dict(zip(("id", "property"), output.rsplit(".", 1), strict=True))
    names = output[2:-2].split("...")
    return [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]


def _answered(answer: Any) -> Outcome:
    answer.get_data()
    if answer.status_code >= 500:
        return Outcome("bad", f"status {answer.status_code}")
    return READ if answer.status_code < 400 else Outcome("refused", str(answer.status_code))


SURFACES: dict[str, Callable[[Path], Callable[[Random], Made]]] = {
    "run store": _store,
    "cache": _cache,
    "report": _report,
    "run manifest": _manifest,
    "command line": _arguments,
    "dashboard": _requests,
}
