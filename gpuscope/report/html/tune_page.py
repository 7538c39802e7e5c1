"""What `gpuscope tune` found as one HTML page: no script, nothing fetched, names as text."""

from __future__ import annotations

from gpuscope.report.html.html_report import page_environment, policy
from gpuscope.report.terminal import tune_text
from gpuscope.schema.tune_document import TuneDocument


def render(found: TuneDocument) -> str:
    """The page; write it as UTF-8."""
    environment = page_environment()
    css = environment.get_template("report.css.j2").render().strip("\n")
    return environment.get_template("tune.html.j2").render(
        found=found,
        css=css,
        policy=policy(css, ""),
        headline=tune_text.headline(found),
        facts=tune_text.facts(found),
        mark=tune_text.mark,
    )
