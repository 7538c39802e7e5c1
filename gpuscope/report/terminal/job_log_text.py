"""The section `job_log`: the steps of a job's log, what it loses, what to do."""

from __future__ import annotations

from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import job_log_sentences
from gpuscope.schema.document import Report


def section(report: Report, writer: Writer) -> None:
    """Nothing without a job's log."""
    if "job_log" not in report:
        return
    writer.heading("The job's log")
    if rows := job_log_sentences.table(report["job_log"]):
        writer.rows(("<time", ">in all", ">share", ">times"), rows)
    for sentence in job_log_sentences.sentences(report["job_log"]):
        writer.line(sentence, hang=2)
