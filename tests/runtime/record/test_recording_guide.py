"""docs/recording.md names every option and every kind of file there is."""

from __future__ import annotations

import re
from pathlib import Path

from gpuscope.instrumented_runtime.record.capture.nsys_capture import nsys_command
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.manifest import KINDS

GUIDE = (Path(__file__).parents[3] / "docs/recording.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    table = GUIDE.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


def test_every_option_is_there_and_no_other() -> None:
    told = {name for row in rows("## Three lines") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(RecordOptions.__struct_fields__)


def test_every_kind_of_file_is_there() -> None:
    told = {row[1].strip("`") for row in rows("## The run folder")} - {""}
    assert told == set(KINDS) - {"measures"}  # which is of `gpuscope train`


def test_the_flags_of_nsys_are_those_in_use() -> None:
    flags = nsys_command("nsys", "OUT", version=(2024, 6, 2), has_cuda=True)[1:-2]
    script = " ".join(GUIDE.partition("# rank.sh")[2].partition("```")[0].replace("\\\n", " ").split())
    assert " ".join(flags) in script
