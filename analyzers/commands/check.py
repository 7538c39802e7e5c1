"""`gpuscope check`: fails where a run is slower than its baseline, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import Percent, StepRange, reading
from gpuscope.store.location import store_option

if TYPE_CHECKING:
    from gpuscope.report.schema.diff_document import CheckCase, Diff


@click.command(short_help="Fail where a run is slower than its baseline, for CI.")
@reading
@click.argument("path")
@click.option("--baseline", required=True, metavar="RUN", help="A trace, the JSON of a report, or a run's number.")
@click.option("--fail-on", type=Percent(), default="5%", show_default=True, metavar="N%",
              help="Fail where the step is slower by more than that, beyond its uncertainty.")  # fmt: skip
@click.option("--fail-on-finding", type=click.Choice(["low", "medium", "high"]),
              help="Also fail on a finding of this severity or a higher one that the baseline has not.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Also fail where the traces don't settle it.")
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps of both, e.g. 3-8.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option("--force", is_flag=True, help="Overwrite the file of --junit.")
@click.option("--github/--no-github", default=None, envvar="GITHUB_ACTIONS",
              help="Print annotations of GitHub Actions on stderr.  [default: where it runs there]")  # fmt: skip
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on stdout.")
def command(
    path: str, baseline: str, ranks: frozenset[int] | None, partial: bool, nsys: str | None, fail_on: float,
    fail_on_finding: str | None, strict: bool, steps: tuple[int, int] | None, junit: Path | None, force: bool,
    github: bool | None, store: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Compare a run with its baseline and exit with 1 where it got worse.

    PATH is a trace, a folder of ranks or a glob, the JSON of `gpuscope analyze --json`, or the number of a run
    in the run store; so is the baseline.

    \b
    gpuscope check run/ --baseline baseline.json --fail-on 5%
    gpuscope check run/ --baseline 12 --fail-on-finding high --junit gpuscope.xml
    """
    from gpuscope.analyzers.comparison import checks
    from gpuscope.analyzers.comparison.compare import compare
    from gpuscope.analyzers.comparison.loading import Reading, load
    from gpuscope.output import check_free, write_text

    check_free([junit] if junit is not None else [], force, (path, baseline))
    how = Reading(ranks, steps, partial, nsys, store)
    before, after = load(baseline, how), load(path, how)
    diff = compare(before, after, fail_on)
    cases = [checks.step_time(diff)]
    if fail_on_finding is not None:
        cases.append(checks.new_findings(before.report, after.report, fail_on_finding))
    diff["checks"] = cases
    if junit is not None:
        from gpuscope.report.junit_xml import dumps

        write_text(junit, dumps(cases, path))
    _print(diff, cases, as_json)
    if github:
        from gpuscope.report.github_annotations import annotation

        for case in cases:
            click.echo(annotation(case), err=True)
    bad = {"failed", "skipped"} if strict else {"failed"}
    return int(any(case["status"] in bad for case in cases))


_WORDS = {
    "passed": ("passed", "bold green"),
    "failed": ("FAILED", "bold red"),
    "skipped": ("can't tell", "bold yellow"),
}


def _print(diff: Diff, cases: list[CheckCase], as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(diff, indent=2, allow_nan=False))
        return
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    writer = Writer(ReportConsole())
    for case in cases:
        word, style = _WORDS[case["status"]]
        writer.line(writer.text(word, style), f"  {case['name']}: {case['message']}", hang=2)
    for caveat in diff["caveats"]:
        writer.line("note: ", caveat, hang=2)
