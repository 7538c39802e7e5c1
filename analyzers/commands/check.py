"""`gpuscope check`: fails where a run is slower than its baseline, for CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import Percent, StepRange, reading
from gpuscope.store.location import store_option

if TYPE_CHECKING:
    from gpuscope.analyzers.comparison.comparison import CheckResult, Severity


@click.command(short_help="Fail where a run is slower than its baseline, for CI.")
@reading
@click.argument("path")
@click.option("--baseline", required=True, metavar="RUN", help="A trace, the JSON of a report, or a run's number.")
@click.option(
    "--fail-on",
    type=Percent(),
    default="5%",
    show_default=True,
    metavar="N%",
    help="Fail where the step is slower by more than that, beyond its uncertainty.",
)
@click.option(
    "--fail-on-finding",
    type=click.Choice(["low", "medium", "high"]),
    help="Also fail on a finding of this severity or a higher one that the baseline has not.",
)
@click.option("--strict", is_flag=True, help="Also fail where the traces are inconclusive.")
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps of both, e.g. 3-8.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option("--force", is_flag=True, help="Overwrite the file of --junit.")
@click.option(
    "--github/--no-github",
    default=None,
    envvar="GITHUB_ACTIONS",
    help="Print annotations of GitHub Actions on stderr.  [default: where it runs there]",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on stdout.")
def command(
    path: str,
    baseline: str,
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    fail_on: float,
    fail_on_finding: Severity | None,
    strict: bool,
    steps: tuple[int, int] | None,
    junit: Path | None,
    force: bool,
    github: bool | None,
    store: Path | None,
    as_json: bool,
) -> int:
    """Compare a run with its baseline and exit with 1 where it got worse.

    PATH is a trace, a folder of ranks or a glob, the JSON of `gpuscope analyze --json`, or the number of a run
    in the run store; so is the baseline.

    \b
    gpuscope check run/ --baseline baseline.json --fail-on 5%
    gpuscope check run/ --baseline 12 --fail-on-finding high --junit gpuscope.xml
    """
    from gpuscope.analyzers.comparison.comparison import check, refuse_same
    from gpuscope.output import check_free, write_text

    check_free([junit] if junit is not None else [], force, (path, baseline))
    refuse_same(path, baseline)
    result = check(
        path,
        baseline=baseline,
        fail_on=fail_on,
        fail_on_finding=fail_on_finding,
        ranks=ranks,
        steps=steps,
        partial=partial,
        nsys=nsys,
        store=store,
        workers=os.cpu_count() or 1,
        progress=True,
    )
    if junit is not None:
        from gpuscope.report.read_report import junit_xml

        write_text(junit, junit_xml(result.cases, path))
    _print(result, as_json)
    if github:
        from gpuscope.report.read_report import annotation

        for case in result.cases:
            click.echo(annotation(case), err=True)
    return int(result.failed or (strict and not result.conclusive))


_WORDS = {
    "passed": ("passed", "bold green"),
    "failed": ("FAILED", "bold red"),
    "skipped": ("inconclusive", "bold yellow"),
}


def _print(result: CheckResult, as_json: bool) -> None:
    document = result.comparison.document
    if as_json:
        import json

        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    writer = Writer(ReportConsole())
    for case in result.cases:
        word, style = _WORDS[case["status"]]
        writer.line(writer.text(word, style), f"  {case['name']}: {case['message']}", hang=2)
    for caveat in document["caveats"]:
        writer.line("note: ", caveat, hang=2)
