"""Reports read back from the file that `gpuscope analyze --json` wrote."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_type_hints
from xml.etree import ElementTree

import msgspec

from gpuscope.errors import InputError
from gpuscope.report.view import main_finding
from gpuscope.report.view.report_rows import per_step_ns, with_per_step
from gpuscope.schema.diff_document import CheckCase
from gpuscope.schema.document import SCHEMA_VERSION, Report
from gpuscope.words import units

# Reports of older schema versions, brought to the present one: what can be told from their own numbers is added.

OLDEST = 2
"""The oldest version that is read."""
NOT_ASKED_IN_2 = "advice was not asked for"
"""What version 2 wrote in place of `advice.asked`."""


def is_readable(version: object) -> bool:
    """Whether a report of that schema version can be read."""
    return isinstance(version, int) and OLDEST <= version <= SCHEMA_VERSION


def brought_up(document: dict[str, Any]) -> dict[str, Any]:
    """A report of a version that is read, with the keys of the present one; it is changed in place. What is damaged is
    left as it is."""
    version = document.get("schema_version")
    if version == SCHEMA_VERSION or not is_readable(version):
        return document
    document["schema_version"] = SCHEMA_VERSION
    step = _the_step(document)
    try:
        document["findings"] = [with_per_step(finding, step) for finding in document.get("findings", [])]
        mean = _mean_step(document)
        for entry in document.get("stragglers", []):
            spent = entry.get("caused_wait_ns_per_step")
            entry["per_step_ns"] = per_step_ns(spent / mean, step) if spent is not None and mean else None
        if "suggestions" in document:
            found = cast(Report, document)
            found["suggestions"] = main_finding.in_order(found, found["suggestions"])
            found["advice"]["unpredicted"] = main_finding.answering_first(found, found["advice"]["unpredicted"])
            if found["advice"]["why"] == NOT_ASKED_IN_2:
                found["advice"]["asked"] = False
    except (KeyError, TypeError, AttributeError):  # who reads it checks its types, and says what is wrong
        pass
    return document


def _the_step(document: dict[str, Any]) -> int | None:
    """«The step»; of a job known by its operations alone, the recorded one: their mean, for these have no other."""
    spread, slowdown = document.get("step_time"), document.get("slowdown")
    if isinstance(spread, dict):
        return int(spread["median_ns"])
    if isinstance(slowdown, dict) and not document.get("ranks"):
        return slowdown.get("recorded_step_ns")
    return None


def _mean_step(document: dict[str, Any]) -> float:
    """Mean over ranks and judged steps, ns; 0 without steps."""
    steps = sum(entry["steps"] for entry in document["ranks"])
    return sum(entry["window_ns"] for entry in document["ranks"]) / steps if steps else 0.0


# Checks as CI reads them: JUnit XML, and annotations of GitHub Actions.


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


# The report as JSON: keys in the order the schema declares, and never a NaN.


def dumps(report: Report) -> str:
    """The document of `--json`, indented, without a trailing newline.

    Numbers that JSON has no word for (NaN, infinities) become null; a lone surrogate, as invalid UTF-8 in
    a name leaves it, stays as its escape, so the text is always plain ASCII.
    """
    ordered = {key: report[key] for key in Report.__annotations__ if key in report}  # type: ignore[literal-required]
    return _text(ordered | report)  # keys of a later schema follow


def dumps_jobs(documents: Sequence[Mapping[str, Any]]) -> str:
    """The document of `--json` for a folder with jobs of several roles: `documents` are reports with their `role`."""
    return _text({"schema_version": SCHEMA_VERSION, "jobs": list(documents)})


def _text(document: dict[str, Any]) -> str:
    finite = _finite(document)
    # Indented by msgspec, since Python's own encoder is several times slower with `indent`.
    try:
        return msgspec.json.format(json.dumps(finite, allow_nan=False), indent=2)
    except msgspec.DecodeError:  # a lone surrogate
        return json.dumps(finite, allow_nan=False, indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | bool | int) or value is None:
        return value
    # numpy's scalars: their Python counterpart.
    return _finite(value.item())


_HEAD = 1 << 16


def read_report(path: Path, needed: Collection[str]) -> Report | None:
    """The report in a file, recognised by its head whatever the order of its keys; None where it is something else.

    Raises `InputError` for one that is cut off, of another schema, or without a key that the caller needs: what later
    versions added may be missing from an older file.
    """
    if not path.is_file():
        return None
    with path.open("rb") as handle:
        head = handle.read(_HEAD)
    if head.lstrip()[:1] != b"{" or b'"gpuscope_version"' not in head:
        return None
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: report is cut off or damaged, not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: no report of gpuscope analyze", hint="gpuscope analyze --json writes one")
    version = document.get("schema_version")
    if not is_readable(version):
        raise InputError(
            f"{path}: {f'a report of schema {version}' if version else 'no report of gpuscope analyze'}",
            hint=f"this gpuscope reads schemas {OLDEST} to {SCHEMA_VERSION}; analyse the trace again",
        )
    missing = sorted(set(needed) - set(document))
    if missing:
        raise InputError(f"{path}: a report without {', '.join(missing)}", hint="analyse the trace again")
    document = brought_up(document)
    _check_types(document, path)
    return cast(Report, document)


def _check_types(document: dict[str, Any], path: Path) -> None:
    """Raise `InputError` where a section is not of its declared type."""
    for name, kind in get_type_hints(Report).items():
        if name not in document:
            continue
        try:
            msgspec.convert(document[name], kind)
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: {name}: {error}", hint="analyse the trace again") from error
    if not _holds_usual_numbers(document):
        raise InputError(f"{path}: holds numbers beyond 64 bits", hint="analyse the trace again")


_LIMIT = 1 << 63


def _holds_usual_numbers(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_holds_usual_numbers, inner)) and not (isinstance(value, int) and abs(value) >= _LIMIT)
