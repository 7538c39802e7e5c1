"""Fills in the parts of the documentation that the program itself knows: option tables, output, the picture.

`make docs` runs it; `python docs/generate.py --check` only says what is out of date (tests/docs does so too), and
`--words` counts the words of each page that are not generated.

A block in a Markdown file is regenerated from the command in its opening line:

    <!-- options: gpuscope analyze -->      usage and a table of its arguments and options
    <!-- run: gpuscope info sample_traces/ddp_healthy | head -n 5 -->      the command and what it prints
    <!-- public: kineto/tracelens_qwen/h100.json.gz -->      the report on a public trace, where its copy is at hand
    <!-- recorded: gpuscope analyze slow -->      what a command of tutorial.md printed, with --record alone
    <!-- table: causes -->      a table that the program holds: see `TABLES`
    <!-- end -->
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap

import click
import keys
from rich.console import Console
from rich.text import Text
from walkthrough import PAGE as WALKTHROUGH
from walkthrough import walk

import gpuscope
from gpuscope.analyzers.advice.rule import suggestions
from gpuscope.analyzers.planning.cluster import ClusterFile
from gpuscope.analyzers.queries.engine import tables as query_tables
from gpuscope.analyzers.queries.examples import EXAMPLES
from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION, Cause
from gpuscope.catalogue.finding import kinds
from gpuscope.catalogue.suggestion import CAUSES
from gpuscope.cli import cli
from gpuscope.instrumented_runtime.commands.record import flags
from gpuscope.instrumented_runtime.record.applied.change import KNOBS
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, option_texts
from gpuscope.instrumented_runtime.train.settings.sections import PARALLELISMS
from gpuscope.output import write_text
from gpuscope.problems.problem import kinds as problem_kinds
from gpuscope.report.terminal.first_screen import render
from gpuscope.report.terminal.screen import Writer

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = (ROOT / ".." / "shared" / "traces").resolve()
"""Public traces of others, of which no copy is part of the project."""
PICTURE = ROOT / "docs" / "images" / "report.svg"
PICTURED = "sample_traces/ddp_slow_rank"
PICTURE_WIDTH = 100
WIDTH = 80
"""Columns of the terminal that output in the documentation was printed on."""
DOCUMENT_WIDTH = 118
"""Columns of a line of prose in a document."""

COMMANDS = ROOT / "docs" / "commands.md"
_BLOCK = re.compile(r"<!-- (?P<kind>options|run|public|recorded|table): (?P<what>.+?) -->\n.*?<!-- end -->", re.DOTALL)
_BY_CODE = re.compile(r"^### `\w+`\n.*?(?=^##|\Z)", re.DOTALL | re.MULTILINE)
_HEAD = re.compile(r"^(?P<command>.+?) \| head -n (?P<lines>\d+)$")


def commands(command: click.Command = cli, path: str = "gpuscope") -> Iterator[tuple[str, click.Command]]:
    """Every command of the CLI by its full name, groups before what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


def options(name: str) -> str:
    """Usage and the table of options of the command of that full name. Raises `KeyError` for no command.

    Without `-h, --help`, which every command has, and without arguments, which click gives no help.
    """
    command = dict(commands())[name]
    context = click.Context(command, info_name=name, terminal_width=10_000, max_content_width=10_000)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    named = [param for param in command.params if isinstance(param, click.Option)]
    rows = [record for param in named if (record := param.get_help_record(context))]
    lines = ["```", usage, "```"]
    if rows:
        lines += ["", "| option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def output(line: str) -> str:
    """The command line as typed in the repository's root, and what it prints there.

    Raises `RuntimeError` where it fails: a broken program must not become documentation.
    """
    return _printed(line, ROOT)


def public(path: str) -> str:
    """The report on a published trace, as if it lay here; what stands in the document where it is not at hand."""
    return _printed(f"gpuscope analyze {path}", PUBLIC)


def _printed(line: str, folder: Path) -> str:
    match = _HEAD.match(line)
    words = shlex.split(match["command"] if match else line)
    assert words[0] == "gpuscope", f"not a gpuscope command: {line}"
    environment = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "PYTHONUTF8": "1",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "GPUSCOPE_NO_STORE": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from gpuscope.cli import main; main()", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stderr}")
    return _console(line, done.stdout)


def _console(line: str, printed: str) -> str:
    """A command and what it printed, down to the lines that `| head -n` asks for."""
    match = _HEAD.match(line)
    lines = [line.rstrip() for line in printed.rstrip("\n").splitlines()]
    if match and len(lines) > int(match["lines"]):
        lines = [*lines[: int(match["lines"])], "[...]"]
    return "\n".join(["```console", f"$ {match['command'] if match else line}", *lines, "```"])


def _causes() -> str:
    lines = ["| class | cause | in reports | what it is |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_cause_row(cause) for cause in CAUSES if cause.code != UNDIVIDED_COMMUNICATION)])


def _cause_row(cause: Cause) -> str:
    return f"| {cause.class_name or '–'} | [`{cause.code}`]({cause.anchor}) | {cause.label} | {_cell(cause.meaning)} |"


def _cause_sections() -> str:
    return "\n\n".join(
        _section(cause.finding_code, cause.about, cause.recognised, cause.helps, cause.misleads) for cause in CAUSES
    )


def _findings() -> str:
    """A section per kind of finding, as the catalogue has them; those of causes stand before them."""
    return "\n\n".join(
        _section(kind.code, kind.__doc__, kind.recognised, kind.helps, kind.misleads) for kind in kinds().values()
    )


def _section(code: str, about: str | None, recognised: str, helps: str, misleads: str) -> str:
    return "\n".join(
        [
            f"### `{code}`",
            "",
            *wrap(_flat(about), DOCUMENT_WIDTH),
            "",
            *_point(f"**Recognised by**: {_flat(recognised)}"),
            *_point(f"**Usually helps**: {_flat(helps)}"),
            *_point(f"**Misled by**: {_flat(misleads) or '–'}"),
        ]
    )


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def _point(text: str) -> list[str]:
    return wrap(text, DOCUMENT_WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _problems() -> str:
    sections = (
        "\n".join(
            [f"### `{kind.code}`", "", *wrap(f"{kind.severity}. {kind.about}", DOCUMENT_WIDTH, break_on_hyphens=False)]
        )
        for kind in problem_kinds().values()
    )
    return "\n\n".join(sections)


def _suggestions() -> str:
    lines = ["| code | answers | setting |", "|---|---|---|"]
    for code, own in suggestions().items():
        answers = ", ".join(f"`{answer}`" for answer in dict.fromkeys(one for record in own for one in record.answers))
        settings = "; ".join(_cell(text) for text in dict.fromkeys(record.sets for record in own))
        lines.append(f"| `{code}` | {answers} | {settings} |")
    return "\n".join(lines)


def _trials() -> str:
    """The job on which each suggestion fires and the one on which it is silent, as tests carry them out."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from helpers.trials import table as trials
    finally:
        sys.path.pop(0)
    lines = ["| code | fires on | truth | silent on |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| `{code}` | {' | '.join(cells)} |" for code, cells in trials().items())])


def _recording_options() -> str:
    lines = ["| option | on the command line | default | |", "|---|---|---|---|"]
    defaults = RecordOptions()
    for name, text in option_texts().items():
        values = " (" + ", ".join(f'`"{choice}"`' for choice in text.choices) + ")" if text.choices else ""
        lines.append(f"| `{name}` | `{flags(name)}` | `{getattr(defaults, name)!r}` | {_cell(text.help + values)} |")
    return "\n".join(lines)


def _knobs() -> str:
    lines = ["| setting | values | how | what it may alter | to allow | shown by |", "|---|---|---|---|---|---|"]
    for one in KNOBS:
        allow = f"`{one.allow}`" if one.allow else ""
        cells = (f"`{one.name}`", one.takes, one.how, _cell(one.alters), allow, f"`{one.shown_by}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _parallelisms() -> str:
    lines = ["| name | what | in `train/parallel/` |", "|---|---|---|"]
    for one in PARALLELISMS:
        names = ", ".join(f"`{name}`" for name in one.names)
        lines.append(f"| {names} | {_cell(one.about)} | `{one.file.partition('.')[0]}.py` |")
    return "\n".join(lines)


def _outcome(path: str) -> str:
    """What was found of a question, kept in benchmarks/outcomes: columns and rows of text."""
    found = tomllib.loads((ROOT / "benchmarks" / "outcomes" / path).read_text(encoding="utf-8"))
    lines = [found["columns"], ["---"] * len(found["columns"]), *found["rows"]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _suggestions_read() -> str:
    """The judgements on suggestions, with their counts above."""
    rows = tomllib.loads((ROOT / "benchmarks" / "outcomes" / "suggestions.toml").read_text(encoding="utf-8"))["rows"]
    judged = [row[3] for row in rows]
    counts = ", ".join(f"{judged.count(word)} {word}" for word in ("right", "figure", "useless", "wrong", "missing"))
    mended = sum(bool(row[5]) and row[3] == "right" for row in rows)
    told = f"Of {len(rows)} rows: {counts}. {mended} of those right were not at the first judgement."
    return f"{told}\n\n{_outcome('suggestions.toml')}"


def _published_layouts() -> str:
    """Published layouts and the planner's, as `python -m benchmarks.planner --write` left them."""
    return (ROOT / "benchmarks" / "outcomes" / "published_layouts.md").read_text(encoding="utf-8").rstrip()


def _gpu_paths() -> str:
    """What `make gpu-check` runs, and what it must see."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from gpu_check.gpu_paths import PATHS
    finally:
        sys.path.pop(0)
    lines = ["| path | passes if |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| {path.name} | {_cell((path.judge.__doc__ or '').rstrip('.'))} |" for path in PATHS)]
    )


def _query_examples() -> str:
    return "\n\n".join(f"{one.question}:\n\n```sql\n{one.sql}\n```" for one in EXAMPLES)


def _query_tables() -> str:
    lines = ["| table | holds | columns |", "|---|---|---|"]
    for one in query_tables().values():
        columns = ", ".join(f"`{column.name}`" for column in one.columns)
        meaning = f"[of the report](report.md): {one.doc}" if one.of_report else one.doc
        lines.append(f"| `{one.name}` | {_cell(meaning)} | {columns} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "causes": _causes,
    "constants": lambda: _outcome("constants.toml"),
    "findings": _findings,
    "cause sections": _cause_sections,
    "comparison keys": lambda: keys.flat("diff"),
    "gpu paths": _gpu_paths,
    "injected faults": lambda: _outcome("faults.toml"),
    "knobs": _knobs,
    "parallelisms": _parallelisms,
    "plan keys": lambda: keys.flat("plan"),
    "cluster keys": lambda: keys.parts(ClusterFile),
    "tune keys": lambda: keys.flat("tune"),
    "tuned scripts": lambda: _outcome("tuning.toml"),
    "waits": lambda: _outcome("waits.toml"),
    "drawn advice": lambda: _outcome("drawn_advice.toml"),
    "predicted and measured": lambda: _outcome("predicted_and_measured.toml"),
    "unseen and measured": lambda: _outcome("unseen_and_measured.toml"),
    "predicted and simulated": lambda: _outcome("predicted_and_simulated.toml"),
    "problems": _problems,
    "profile keys": lambda: keys.document("report", "###", only=keys.PROFILE),
    "query examples": _query_examples,
    "query tables": _query_tables,
    "public verdicts": lambda: _outcome("public_traces.toml"),
    "published layouts": _published_layouts,
    "recording options": _recording_options,
    "report keys": lambda: keys.document("report", "##", without=keys.PROFILE),
    "scripts of others": lambda: _outcome("scripts.toml"),
    "examples": lambda: _outcome("examples.toml"),
    "digests": lambda: _outcome("digests.toml"),
    "recorder": lambda: _outcome("recorder.toml"),
    "hangs": lambda: _outcome("runtime_faults.toml"),
    "store tables": keys.store_tables,
    "suggestions": _suggestions,
    "suggestions read by hand": _suggestions_read,
    "trials": _trials,
}
"""What stands in the program and is read in the documentation too, by the name of its block."""


def table(name: str) -> str:
    """A table of `TABLES`. Raises `KeyError` for no such table."""
    return TABLES[name]()


MAKERS: dict[str, Callable[[str], str]] = {"options": options, "run": output, "public": public, "table": table}


def filled(text: str, anew: bool = False) -> str:
    """A document with its blocks brought up to date; reports on public traces only where `anew` and these are there."""

    def block(match: re.Match[str]) -> str:
        if match["kind"] == "recorded" or (match["kind"] == "public" and not (anew and PUBLIC.is_dir())):
            return match[0]
        made = MAKERS[match["kind"]](match["what"])
        return f"<!-- {match['kind']}: {match['what']} -->\n{made}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def recorded(text: str) -> str:
    """The page of the walkthrough with what its commands print on this machine, and the setting that they lead to."""
    with TemporaryDirectory() as folder:
        walked = walk(text, Path(folder))
    text = re.sub(r"(?<= -- python train.py )[1-9]\d*$", str(walked.advised), text, flags=re.MULTILINE)

    def block(match: re.Match[str]) -> str:
        if match["kind"] != "recorded":
            return match[0]
        head = _HEAD.match(match["what"])
        printed = walked.printed[head["command"] if head else match["what"]]
        return f"<!-- recorded: {match['what']} -->\n{_console(match['what'], printed)}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def with_new_commands(text: str) -> str:
    """The page of commands with a section for each that has none yet, from its own help."""
    for name, command in commands():
        if f"\n### `{name}`\n" not in text and f"\n## `{name}`\n" not in text:
            about = (command.help or "").partition("\n\n")[0]
            text = f"{text.rstrip()}\n\n### `{name}`\n\n{about}\n\n<!-- options: {name} -->\n<!-- end -->\n"
    return text


def words() -> dict[str, int]:
    """Words of each page of docs/ to read through: without generated blocks, and without the sections per code of
    findings.md, which are looked up one at a time."""
    counted = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
        text = _BY_CODE.sub("", text) if page.name == "findings.md" else text
        counted[page.name] = len(text.split())
    return counted


def documents() -> list[Path]:
    """The README and the files of docs/ that hold blocks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if _BLOCK.search(path.read_text(encoding="utf-8"))]


def picture() -> str:
    """The first screen of the terminal report on a sample trace, as SVG."""
    report = gpuscope.analyze(ROOT / PICTURED).report
    written = StringIO()
    console = Console(file=written, width=PICTURE_WIDTH, force_terminal=True, color_system="truecolor")
    render(report, Writer(console))
    lines = [Text.from_ansi(line) for line in written.getvalue().splitlines()]
    console = Console(record=True, width=PICTURE_WIDTH, file=StringIO(), color_system="truecolor")
    console.print(Text(f"$ gpuscope analyze {PICTURED}"), *lines, sep="\n", highlight=False)
    return console.export_svg(title="gpuscope analyze", unique_id="gpuscope")


def main() -> int:
    """Write what is out of date (--record: also what only a recording shows); --check names it, --words counts."""
    if "--words" in sys.argv[1:]:
        for name, count in (counted := words()).items():
            print(f"{count:6}  {name}")
        print(f"{sum(counted.values()):6}  in all")
        return 0
    if "--check" in sys.argv[1:]:
        stale = [path for path in documents() if filled(text := path.read_text(encoding="utf-8")) != text]
        for path in stale:
            print(f"out of date, run `make docs`: {path.relative_to(ROOT)}")
        return int(bool(stale))
    if "--record" in sys.argv[1:]:
        write_text(WALKTHROUGH, recorded(WALKTHROUGH.read_text(encoding="utf-8")))
    write_text(COMMANDS, with_new_commands(COMMANDS.read_text(encoding="utf-8")))
    for path in documents():
        if (text := path.read_text(encoding="utf-8")) != (now := filled(text, anew=True)):
            write_text(path, now)
    write_text(PICTURE, picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
