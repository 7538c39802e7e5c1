"""Builds the documentation as a site: python docs/build_site.py, from the repository's root; `make docs` does.

Its pages are the README, docs/ and what these link to, with links made to fit, and two kinds of pages that are made
from the program's own records: one per cause and finding (its section of docs/findings.md), and one per suggestion (its
`Knob`, what its rule says of risk and proof, and what its findings are recognised and misled by).
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import gpuscope.analyzers.advice.rules as advice_rules
from gpuscope.analyzers.advice.rule import Knob, rules
from gpuscope.catalogue.cause_table import CAUSES

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
WORDS = 12
"""Letters from which a text with gaps still says something."""


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


def knobs() -> dict[str, list[Knob]]:
    """Everything that a rule may suggest, by code."""
    found: dict[str, list[Knob]] = defaultdict(list)
    for knob in (knob for rule in rules() for knob in rule.knobs):
        found[knob.code].append(knob)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Said:
    """What a rule says of its proposals of one code: their risk, and how to verify them; figures left open."""

    risks: tuple[str, ...]
    verify: tuple[str, ...]


def said_by_rules() -> dict[str, Said]:
    """By code, from the rules' own source: a proposal is the one place where this is written."""
    found: dict[str, list[ast.Call]] = defaultdict(list)
    names: dict[int, dict[str, str]] = {}
    for path in sorted(Path(advice_rules.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.targets[0].id: text
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and (text := _text(node.value, {}))
        }
        own = {node.args[0].value for node in ast.walk(tree)
               if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Knob" and node.args
               and isinstance(node.args[0], ast.Constant)}  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = {word.arg: word.value for word in node.keywords}
            if getattr(node.func, "id", "") == "Proposal" or {"code", "risk"} <= set(given):
                names[id(node)] = texts
                code = _text(given["code"], texts) if "code" in given else ""
                # A proposal made from a table holds for every knob of its file that has none of its own.
                for one in [code] if code in own else own:
                    found[one if code in own else f"{one}?"].append(node)
    result: dict[str, Said] = {}
    for code in knobs():
        said = [
            _given(found.get(code, []), key, names) or _given(found.get(f"{code}?", []), key, names)
            for key in ("risk", "verify")
        ]
        knob = [(own.risk, own.verify) for own in knobs()[code]]
        result[code] = Said(*(
            tuple(dict.fromkeys([*texts, *(pair[place] for pair in knob if pair[place])]))
            for place, texts in enumerate(said)
        ))  # fmt: skip
    return result


def _given(calls: Iterable[ast.Call], key: str, names: dict[int, dict[str, str]]) -> tuple[str, ...]:
    """What some calls are given by that keyword."""
    return tuple(dict.fromkeys(text for call in calls for word in call.keywords
                               if word.arg == key and (text := _text(word.value, names[id(call)]))))  # fmt: skip


def _text(node: ast.expr, names: dict[str, str]) -> str:
    """The words of a string, with «…» for what depends on the run; empty where that is all of it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else
            (isinstance(part, ast.FormattedValue) and _text(part.value, names)) or "…"
            for part in node.values
        ]  # fmt: skip
        return "".join(parts) if sum(map(str.isalpha, "".join(parts))) >= WORDS else ""
    if isinstance(node, ast.IfExp):
        return _text(node.body, names)
    if isinstance(node, ast.BinOp):  # texts put together
        parts = [text for side in (node.left, node.right) if (text := _text(side, names))]
        return "".join(parts)
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


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
    lines += ["## How to verify", "",
              "The finding's evidence is a list of spans of your trace, with rank, start and length: look at them in "
              "`gpuscope dashboard PATH`, or in [ui.perfetto.dev](https://ui.perfetto.dev) after `gpuscope export PATH "
              "--perfetto run.json.gz`. After a change, record again: `gpuscope diff BEFORE AFTER` lists this cause "
              "with its time before and after.", ""]  # fmt: skip
    return "\n".join(lines)


def suggestion_page(code: str, own: list[Knob], said: Said, findings: dict[str, FindingSection]) -> str:
    """One suggestion: what it sets, what it answers and how that is recognised, what misleads, risk, proof."""
    lines = [f"# `{code}`", "", "## What it sets", ""]
    lines += [*dict.fromkeys(f"- {knob.setting[0].upper()}{knob.setting[1:]}" for knob in own), ""]
    answered = [
        finding for finding in dict.fromkeys(one for knob in own for one in knob.answers) if finding in findings
    ]
    for heading, word in (("When it is suggested", "Recognised by"), ("What would mislead it", "Misled by")):
        lines += [f"## {heading}", ""]
        if word == "Recognised by":
            lines += [SHOWN, ""]
        for finding in answered:
            text = findings[finding].points.get(word, "–")
            if text != "–":
                lines += [f"- [`{finding}`](../causes/{finding}.md): {text}"]
        lines += [""]
    if said.risks:
        lines += ["## Risk", "", *(f"- {text[0].upper()}{text[1:]}" for text in said.risks), ""]
    lines += ["## How to verify", "", *(f"- {text[0].upper()}{text[1:]}" for text in said.verify)]
    lines += [f"- {VERIFY.format(code=code)}", ""]
    return "\n".join(lines)


def index_page(title: str, about: str, entries: dict[str, str]) -> str:
    """A list of pages in the same folder, each with a line of what it is."""
    rows = [f"| [`{code}`]({code}.md) | {text} |" for code, text in entries.items()]
    return "\n".join([f"# {title}", "", about, "", "| code | |", "|---|---|", *rows, ""])


def generated_pages() -> dict[str, str]:
    """The pages that no file of the repository holds, by their place on the site."""
    findings, settable, said = finding_sections(), knobs(), said_by_rules()
    answering = {
        code: [one for one, own in settable.items() if any(code in knob.answers for knob in own)] for code in findings
    }
    pages = {f"causes/{code}.md": cause_page(section, answering[code]) for code, section in findings.items()}
    pages |= {
        f"suggestions/{code}.md": suggestion_page(code, own, said[code], findings) for code, own in settable.items()
    }
    sentences = {code: " ".join(re.split(r"(?<=\.)\s", section.about)[0].split()) for code, section in findings.items()}
    pages["causes/index.md"] = index_page(
        "Causes and findings",
        "Why time is lost: what each is, how it is recognised, what misleads, what helps.",
        sentences,
    )
    pages["suggestions/index.md"] = index_page(
        "Suggestions", "What may be suggested, each with the step time that the replay of your own trace predicts.",
        {code: own[0].setting.replace("|", "\\|") for code, own in settable.items()},
    )  # fmt: skip
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
