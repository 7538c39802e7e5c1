"""Builds the documentation as a site: python docs/build_site.py, from the repository's root; `make docs` does.

Its pages are the README, docs/ and what these link to, with links made to fit, and two kinds of pages that are made
from the program's own records: one per cause and finding (its section of docs/findings.md), and one per suggestion (its
records, and what its findings are recognised and misled by).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuscope.analyzers.advice.rule import suggestions
from gpuscope.catalogue.suggestion import CAUSES, Suggestion, left_open

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site-pages"
CONFIG = DOCS / "zensical.toml"
ELSEWHERE = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md": "CONTRIBUTING.md",
    ROOT / "SECURITY.md": "SECURITY.md",
    ROOT / "LICENSE": "LICENSE.txt",
    ROOT / "sample_traces" / "MANIFEST.md": "sample_traces.md",
    ROOT / "benchmarks" / "README.md": "benchmarks.md",
}
"""Files outside docs/ that are part of the site, by their name there."""
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_POINT = re.compile(r"^- \*\*(?P<word>[^*]+)\*\*: (?P<text>.*?)(?=^- \*\*|\Z)", re.DOTALL | re.MULTILINE)
VERIFY = (
    "Make the change alone, record again in the same way, and let `gpuscope diff BEFORE AFTER --suggestion {code}` say \
whether the step became shorter beyond chance, and as much as predicted."
)

SHOWN = "It answers these findings, and is shown only if the replay of your own trace with the change makes the step \
shorter ([how](../advice.md)); where that can't be replayed, it is listed with what to record."


def place_of(path: Path) -> str | None:
    """Where a file of the repository stands on the site, or None where it does not."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.is_relative_to(DOCS) and path.suffix in (".json", ".md", ".png", ".svg"):
        return path.relative_to(DOCS).as_posix()
    return None


def relative(target: str, page: str) -> str:
    """The link from one page of the site to another."""
    up = len(PurePosixPath(page).parents) - 1
    return "../" * up + target


def moved(text: str, source: Path, page: str) -> str:
    """A document with its links as they must be on `page`; what is not on the site keeps its words alone."""

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or "://" in target:
            return match[0]
        place = place_of((source.parent / target).resolve())
        if place is None:
            raise ValueError(f"{source.relative_to(ROOT)} links to {target}, which is not on the site")
        return f"]({relative(place, page)}{'#' + anchor if anchor else ''})"

    kept: list[str] = []

    def hide(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    hidden = _LINK.sub(link, _CODE.sub(hide, text))
    while "\0" in hidden:  # a link's words may hold code
        hidden = re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], hidden)
    return hidden


@dataclass(frozen=True)
class FindingSection:
    """A section of docs/findings.md."""

    code: str
    about: str
    points: dict[str, str]
    """Recognised by, Usually helps, Misled by."""


def finding_sections() -> dict[str, FindingSection]:
    """What docs/findings.md says of each cause and finding, by code."""
    text = (DOCS / "findings.md").read_text(encoding="utf-8")
    part = text.split("\n## Causes and findings\n")[1].split("\n## ")[0]
    part = re.sub(r"^<!--.*?-->\n", "", part, flags=re.MULTILINE)
    part = moved(part, DOCS / "findings.md", "causes/_.md")  # all pages made of it lie one folder down
    found: dict[str, FindingSection] = {}
    for section in part.split("\n### `")[1:]:
        code, _, body = section.partition("`\n")
        about, *_ = re.split(r"^- \*\*", body, maxsplit=1, flags=re.MULTILINE)
        points = {match["word"]: " ".join(match["text"].split()) for match in _POINT.finditer(body)}
        found[code] = FindingSection(code, about.strip(), points)
    return found


def cause_page(section: FindingSection, answering: list[str]) -> str:
    """One cause or finding: what it is, how it is recognised, what misleads, what helps, how to verify."""
    cause = next((cause for cause in CAUSES if cause.finding_code == section.code), None)
    title = f"`{section.code}`" + (f": {cause.label}" if cause else "")
    lines = [f"# {title}", "", section.about, ""]
    if cause:
        kind = f"class `{cause.class_name}`" if cause.class_name else "no class"
        lines += [f"A [cause](../definitions.md#stalls-class-and-cause) of time that is not compute, {kind}.", ""]
    else:
        lines += ["A [finding](../findings.md) that is no cause of its own.", ""]
    headings = {"Recognised by": "How it is recognised", "Misled by": "What misleads", "Usually helps": "What helps"}
    for word, heading in headings.items():
        if section.points.get(word, "–") != "–":
            lines += [f"## {heading}", "", section.points[word][0].upper() + section.points[word][1:], ""]
    if answering:
        lines += ["## Suggestions that answer it", ""]
        lines += [*(f"- [`{code}`](../suggestions/{code}.md)" for code in answering), ""]
    lines += [
        "## How to verify",
        "",
        "The finding's evidence is a list of spans of your trace, with rank, start and length: look at them in "
        "`gpuscope dashboard PATH`, or in [ui.perfetto.dev](https://ui.perfetto.dev) after `gpuscope export PATH "
        "--perfetto run.json.gz`. After a change, record again: `gpuscope diff BEFORE AFTER` lists this cause "
        "with its time before and after.",
        "",
    ]
    return "\n".join(lines)


def suggestion_page(code: str, own: list[type[Suggestion]], findings: dict[str, FindingSection]) -> str:
    """One suggestion: what it sets, what it answers and how that is recognised, what misleads, risk, proof."""
    lines = [f"# `{code}`", "", "## What it sets", "", *_points(record.sets for record in own), ""]
    answered = [
        finding for finding in dict.fromkeys(one for record in own for one in record.answers) if finding in findings
    ]
    lines += ["## When it is suggested", "", SHOWN, "", *_of_findings(answered, findings, "Recognised by"), ""]
    lines += ["## What would mislead it", "", *_of_findings(answered, findings, "Misled by")]
    lines += [*_points(record.misleads for record in own), ""]
    lines += ["## Risk", "", *_points(record.risk for record in own), ""]
    lines += ["## How to verify", "", *_points(record.verify for record in own), f"- {VERIFY.format(code=code)}", ""]
    return "\n".join(lines)


def _of_findings(codes: Iterable[str], findings: dict[str, FindingSection], word: str) -> list[str]:
    points = ((code, findings[code].points.get(word, "–")) for code in codes)
    return [f"- [`{code}`](../causes/{code}.md): {text}" for code, text in points if text != "–"]


def _points(texts: Iterable[str]) -> list[str]:
    """What records of one suggestion say, each once, with «…» for what depends on the run."""
    said = dict.fromkeys(left_open(text) for text in texts if text)
    return [f"- {text[0].upper()}{text[1:]}" for text in said]


def index_page(title: str, about: str, entries: dict[str, str]) -> str:
    """A list of pages in the same folder, each with a line of what it is."""
    rows = [f"| [`{code}`]({code}.md) | {text} |" for code, text in entries.items()]
    return "\n".join([f"# {title}", "", about, "", "| code | |", "|---|---|", *rows, ""])


def generated_pages() -> dict[str, str]:
    """The pages that no file of the repository holds, by their place on the site."""
    findings, settable = finding_sections(), suggestions()
    answering = {
        code: [one for one, own in settable.items() if any(code in record.answers for record in own)]
        for code in findings
    }
    pages = {f"causes/{code}.md": cause_page(section, answering[code]) for code, section in findings.items()}
    pages |= {f"suggestions/{code}.md": suggestion_page(code, own, findings) for code, own in settable.items()}
    sentences = {code: " ".join(re.split(r"(?<=\.)\s", section.about)[0].split()) for code, section in findings.items()}
    pages["causes/index.md"] = index_page(
        "Causes and findings",
        "Why time is lost: what each is, how it is recognised, what misleads, what helps.",
        sentences,
    )
    pages["suggestions/index.md"] = index_page(
        "Suggestions",
        "What may be suggested, each with the step time that the replay of your own trace predicts.",
        {code: own[0].sets.replace("|", "\\|") for code, own in settable.items()},
    )
    return pages


def pages() -> dict[str, bytes]:
    """Every file of the site's source, by its place."""
    found: dict[str, bytes] = {}
    for path in [*ELSEWHERE, *sorted(DOCS.rglob("*"))]:
        place = place_of(path)
        if place is None:
            continue
        if path.suffix == ".md":
            found[place] = moved(path.read_text(encoding="utf-8"), path, place).encode()
        else:
            found[place] = path.read_bytes()
    return found | {place: text.encode() for place, text in generated_pages().items()}


def main() -> int:
    """Write the pages and build the site; a warning (a dead link, say) is an error."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for place, content in pages().items():
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / place).write_bytes(content)
    shutil.copy(CONFIG, PAGES.parent / CONFIG.name)  # what is built must lie beside its configuration
    environment = {**os.environ, "NO_COLOR": "1"}
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", CONFIG.name]
    return subprocess.run(build, cwd=PAGES.parent, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
