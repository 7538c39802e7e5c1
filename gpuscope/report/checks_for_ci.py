"""Checks as CI reads them: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from gpuscope.schema.diff_document import CheckCase
from gpuscope.words import units


def junit_xml(cases: Sequence[CheckCase], subject: str) -> str:
    """One test suite of one case per check; what could not be decided is skipped."""
    number = Counter(case["status"] for case in cases)
    suite = ElementTree.Element(
        "testsuite",
        name="gpuscope check",
        tests=str(len(cases)),
        failures=str(number["failed"]),
        errors="0",
        skipped=str(number["skipped"]),
    )
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", classname=units.clean(subject), name=case["name"])
        if case["status"] == "passed":
            ElementTree.SubElement(element, "system-out").text = units.clean(case["message"])
        else:
            tag = "failure" if case["status"] == "failed" else "skipped"
            ElementTree.SubElement(element, tag, message=units.clean(case["message"]))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


_LEVEL = {"failed": "error", "skipped": "warning", "passed": "notice"}


def annotation(case: CheckCase) -> str:
    """A workflow command, `::error title=gpuscope, step time::Regression: …`, escaped as in GitHub's own toolkit
    (actions/toolkit, packages/core/src/command.ts)."""
    title = _escaped(f"gpuscope: {case['name']}").replace(":", "%3A").replace(",", "%2C")
    return f"::{_LEVEL[case['status']]} title={title}::{_escaped(case['message'])}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
