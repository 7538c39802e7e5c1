"""docs/recording.md and docs/bench.md name every option, command and kind of file there is."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest

from gpuscope.instrumented_runtime.commands.bench import command as bench
from gpuscope.instrumented_runtime.commands.record import command
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, option_texts, options_from
from gpuscope.instrumented_runtime.record.manifest import KINDS
from gpuscope.instrumented_runtime.record.nsys_capture import nsys_command

GUIDE = (Path(__file__).parents[3] / "docs/recording.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    table = GUIDE.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


def test_every_option_is_there_and_no_other() -> None:
    documented = {name for row in rows("## Three lines") for name in re.findall(r"`(\w+)`", row[0])}
    assert documented == set(option_texts())


def test_the_command_line_has_every_option_with_the_same_default() -> None:
    """One declaration: `gpuscope record` is made from the fields of `RecordOptions`, where its results go and what it
    changes."""
    options = {param.name: param for param in command.params if isinstance(param, click.Option)}
    others = ("out", "parts", "changes", "allow")
    assert {name: one.default for name, one in options.items() if name not in others} == asdict(RecordOptions())
    assert (options["with_stack"].opts, options["record_shapes"].secondary_opts) == (["--stacks"], ["--no-shapes"])
    assert options["hang_timeout_s"].opts == ["--hang-timeout"]


def test_what_the_command_line_chooses_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--active 3 --no-gc --hang-timeout 1.5` arrives in a rank as those fields, the rest as declared."""
    given = ["--active", "3", "--no-gc", "--hang-timeout", "1.5", "--", "true"]
    params = command.make_context("record", given).params
    chosen = RecordOptions(**{name: value for name, value in params.items() if name in option_texts()})
    for name, value in chosen.to_environment().items():
        monkeypatch.setenv(name, value)
    assert options_from(active=9) == replace(RecordOptions(), active=3, gc=False, hang_timeout_s=1.5)


def test_every_kind_of_file_is_there() -> None:
    documented = {row[1].strip("`") for row in rows("## The run folder")} - {""}
    assert documented == set(KINDS) - {"measures"}  # which is of `gpuscope train`


def test_the_flags_of_nsys_are_those_in_use() -> None:
    flags = nsys_command("nsys", "OUT", version=(2024, 6, 2), has_cuda=True)[1:-2]
    script = " ".join(GUIDE.partition("# rank.sh")[2].partition("```")[0].replace("\\\n", " ").split())
    assert " ".join(flags) in script


BENCH = (Path(__file__).parents[3] / "docs/bench.md").read_text()


@pytest.mark.parametrize("name", sorted(bench.commands))
def test_command_and_options_are_documented(name: str) -> None:
    (section,) = [part for part in BENCH.split("\n## ") if part.startswith(f"`gpuscope bench {name}`")]
    options = [option.opts[-1] for option in bench.commands[name].params]
    # Every command takes these two; the command line adds --debug when it is started.
    assert [option for option in options if option not in section and option not in ("--json", "--debug")] == []
