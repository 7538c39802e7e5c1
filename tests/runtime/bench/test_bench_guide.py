"""docs/bench.md names every bench command and every option of it."""

from pathlib import Path

import pytest

from gpuscope.instrumented_runtime.commands.bench import command

TEXT = (Path(__file__).parents[3] / "docs/bench.md").read_text()


@pytest.mark.parametrize("name", sorted(command.commands))
def test_command_and_options_are_documented(name: str) -> None:
    (section,) = [part for part in TEXT.split("\n## ") if part.startswith(f"`gpuscope bench {name}`")]
    options = [option.opts[-1] for option in command.commands[name].params]
    # Every command takes these two; the command line adds --debug when it is started.
    assert [option for option in options if option not in section and option not in ("--json", "--debug")] == []
