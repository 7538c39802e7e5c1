"""A scripted session of an assistant, by the SDK's own client over standard input and output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import gpuscope
from gpuscope.report.terminal.diff_text import verdict_line
from gpuscope.words import units

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
anyio = pytest.importorskip("anyio")

Ask = Callable[..., Awaitable[str]]
MOST = 4_000


class RefusedError(Exception):
    """The server answered with an error."""


def session(script: Callable[[Ask], Awaitable[None]], *roots: Path) -> None:
    """Run `script` against `gpuscope mcp ROOTS`; it asks by `await ask(tool, **arguments)`."""

    async def run() -> None:
        program = "from gpuscope.cli import main; main()"
        arguments = ["-c", program, "mcp", *map(str, roots)]
        async with mcp.Client(
            mcp.stdio_client(mcp.StdioServerParameters(command=sys.executable, args=arguments))
        ) as client:

            async def ask(tool: str, **given: object) -> str:
                done = await client.call_tool(tool, given)
                text = "".join(part.text for part in done.content)
                assert len(text.encode()) < MOST
                assert done.structured_content is None  # the same once more
                if done.is_error:
                    raise RefusedError(text)
                return text

            ask.client = client  # type: ignore[attr-defined]
            await script(ask)

    anyio.run(run)


def test_an_assistant_finds_the_late_rank_and_proves_the_gain(samples: Path) -> None:
    slow = gpuscope.analyze(samples / "ddp_slow_rank")
    straggler = next(one for one in slow.report["findings"] if one["code"] == "straggler")
    rows_there = len(gpuscope.open_trace(samples / "ddp_slow_rank")["device_events"])
    predicted = slow.predict(gpuscope.changes.ReplacedRank(1))
    assert isinstance(predicted, gpuscope.Predicted)
    times = [units.duration(ns) for ns in (predicted.before, predicted.after, predicted.low, predicted.high)]
    compared = gpuscope.diff(slow, samples / "ddp_healthy").document

    async def script(ask: Ask) -> None:
        # Look.
        there = await ask("list_runs")
        assert "can be opened: ddp_slow_rank" in there
        assert "Rank 1 is late" in await ask("open_run", path="ddp_slow_rank")
        verdict = await ask("verdict", run="ddp_slow_rank")
        assert units.share(slow.report["verdict"]["share_frac"]) in verdict
        assert f"sure: {slow.report['verdict']['confidence']:.2g}" in verdict
        found = await ask("findings", run="ddp_slow_rank", code="straggler")
        cost = units.duration(straggler["per_step_ns"])
        assert found.startswith(f"straggler (high) · rank 1 · {cost} per step")
        assert "evidence: rank 0 at " in found
        # Hypothesis: rank 1 computes more than rank 0.
        columns = await ask("query", run="ddp_slow_rank")
        assert f"device_events ({rows_there:,} rows): row, rank, device, stream, context, start_ns" in columns
        rows = await ask(
            "query",
            run="ddp_slow_rank",
            sql="SELECT rank, sum(dur_ns) / 1000000 FROM device_events WHERE kind = 'compute' GROUP BY rank",
        )
        ms = dict(map(int, line.split(" | ")) for line in rows.splitlines()[1:])
        assert ms[1] > 1.5 * ms[0]
        # What if it were like its peer?
        suggested = await ask("what_if", run="ddp_slow_rank")
        assert "suggestion own_work (for straggler): Remove the aten::mm that only rank 1 runs" in suggested
        assert "replaced_rank(rank)" in suggested
        outcome = await ask("what_if", run="ddp_slow_rank", changes=[{"change": "replaced_rank", "rank": 1}])
        assert outcome.startswith("step {} → {} ({} to {}), -".format(*times))
        assert "the whole range is a gain" in outcome
        # Change (here: the run without the fault), diff.
        proof = await ask("diff", before="ddp_slow_rank", after="ddp_healthy")
        assert proof.startswith("Improvement: ")
        assert verdict_line(compared) in proof
        assert "(95 % interval), conclusive" in proof
        assert "waiting for a late rank (straggler): " in proof
        assert "open: ddp_healthy" in await ask("list_runs")

    session(script, samples)


def test_every_tool_says_what_it_does_and_that_it_only_reads(samples: Path) -> None:
    async def script(ask: Ask) -> None:
        tools = (await ask.client.list_tools()).tools  # type: ignore[attr-defined]
        assert [tool.name for tool in tools] == [
            "list_runs",
            "open_run",
            "verdict",
            "findings",
            "query",
            "what_if",
            "diff",
            "record_advice",
        ]
        for tool in tools:
            assert len(tool.description) > 40
            assert tool.annotations.read_only_hint
            for parameter in tool.input_schema["properties"].values():
                assert parameter["description"]
        assert "torchrun" in await ask("record_advice")
        assert "times of different ranks are comparable" in await ask("record_advice", run="ddp_slow_rank")

    session(script, samples)


def test_commands_run_only_where_that_was_allowed(tmp_path: Path) -> None:
    """Without the option there is no tool for it; with it one tuning goes on at a time, and its end is told."""
    from gpuscope.analyzers.assistant.mcp_server import server
    from gpuscope.analyzers.assistant.opened_runs import OpenRuns, Tunings
    from gpuscope.errors import UsageError
    from gpuscope.sources.source import ReadOptions

    opened, tunings = OpenRuns([tmp_path], ReadOptions()), Tunings(tmp_path)
    names = {tool.name for tool in anyio.run(server(opened).list_tools)}
    more = {tool.name: tool for tool in anyio.run(server(opened, tunings).list_tools)}
    assert set(more) - names == {"tune_start", "tune_status", "tune_result"}
    assert not more["tune_start"].annotations.read_only_hint
    with pytest.raises(UsageError, match="no tuning was started"):
        tunings.status()
    assert "tune_status" in tunings.start([sys.executable, "-c", "import time; time.sleep(60)"], "8")
    with pytest.raises(UsageError, match="a tuning goes on"):
        tunings.start(["python", "train.py"], "8")
    deadline = time.monotonic() + 60
    while "as it stands" not in tunings.status() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "goes on" in tunings.status()
    tunings.stop()
    assert "ended with 130" in tunings.result()


def test_the_skill_names_tools_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    from helpers.cli import call

    from gpuscope.analyzers.assistant.mcp_server import server
    from gpuscope.analyzers.assistant.opened_runs import OpenRuns
    from gpuscope.sources.source import ReadOptions

    skill = call(capsys, "mcp", "--skill").stdout
    tools = anyio.run(server(OpenRuns([Path.cwd()], ReadOptions())).list_tools)
    assert {tool.name for tool in tools} <= set(re.findall(r"`(\w+)`", skill))  # each is named
    assert skill.startswith("---\nname: gpuscope\ndescription: ")
    steps = ["Look", "Hypothesis", "What if", "Change", "Diff"]
    assert re.findall(r"^## \d\. (.+)$", skill, re.MULTILINE) == steps


def test_errors_are_sentences(samples: Path) -> None:
    async def script(ask: Ask) -> None:
        for tool, given, said in (
            ("open_run", {"path": "../README.md"}, "outside of what this server may open"),
            ("open_run", {"path": "nothing"}, "no such file or directory"),
            ("open_run", {"path": "ddp_healthy", "ranks": "x"}, "is not a set of ranks"),
            ("query", {"run": "ddp_healthy", "sql": "DROP TABLE ranks"}, "only SELECT"),
            ("what_if", {"run": "ddp_healthy", "changes": [{"change": "magic"}]}, "no change 'magic'"),
            ("what_if", {"run": "ddp_healthy", "changes": [{"change": "replaced_rank"}]}, "replaced_rank: "),
            ("what_if", {"run": "ddp_healthy", "changes": [{"change": "bucket_size", "size": -1}]}, "can't be"),
            ("diff", {"before": "ddp_healthy", "after": "ddp_healthy", "suggestion": "x"}, "does not suggest 'x'"),
        ):
            with pytest.raises(RefusedError, match=said):
                await ask(tool, **given)

    session(script, samples)
