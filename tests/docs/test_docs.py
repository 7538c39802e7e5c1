"""The documentation says what the program does: every command, option, code, key and link."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import click
import pytest
from helpers import snippets

import gpuscope
from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.finding import kinds
from gpuscope.catalogue.suggestion import CAUSES
from gpuscope.report.view.first_lines import first_lines
from gpuscope.schema.document import BatchEntry, Report

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SAMPLED = ("ddp_healthy", "ddp_slow_loader", "ddp_slow_rank", "ddp_recompiling", "ep_healthy")
SAMPLES = [ROOT / "sample_traces" / name for name in SAMPLED]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    level = heading.split(" ")[0]
    _, _, rest = text_of(DOCS / page).partition(f"\n{heading}\n")
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


# ---- commands ----


def test_every_command_has_its_own_section(generate: ModuleType) -> None:
    headings = set(re.findall(r"^#+ `(gpuscope[^`]*)`$", text_of(DOCS / "commands.md"), re.MULTILINE))
    assert headings == {name for name, _ in generate.commands()}


def test_every_option_is_documented_with_its_command(generate: ModuleType) -> None:
    for name, command in generate.commands():
        block = re.search(rf"<!-- options: {name} -->\n(.*?)<!-- end -->", text_of(DOCS / "commands.md"), re.DOTALL)
        assert block, name
        documented = set(re.findall(r"--?[a-z][\w-]*", " ".join(re.findall(r"^\| `([^`]*)`", block[1], re.MULTILINE))))
        options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
        assert documented == {flag for option in options for flag in (*option.opts, *option.secondary_opts)}, name


def typed_commands(page: Path) -> Iterator[str]:
    """Commands of gpuscope in a page's code, as they are typed; without output of programs."""
    text = re.sub(r"\\\n\s*", "", text_of(page))
    blocks = re.findall(r"^```(?!console)\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    yield from (line.split("  #")[0] for line in lines if line.startswith("gpuscope "))
    inline = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (code.replace("\n", " ") for code in re.findall(r"`(gpuscope [^`]+)`", inline))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_are_shown_exist(page: Path, generate: ModuleType) -> None:
    known = dict(generate.commands())
    wrong = []
    for typed in typed_commands(page):
        words = typed.partition(" -- ")[0].partition(" | ")[0].partition(" && ")[0].split()
        name = "gpuscope"
        for word in words[1:3]:
            name = f"{name} {word}" if f"{name} {word}" in known else name
        options = {flag for param in known[name].params for flag in (*param.opts, *param.secondary_opts)}
        options |= {"--help", "--debug", "--version"}
        wrong += [
            f"{typed}: {word}" for word in words if word.startswith("--") and word.partition("=")[0] not in options
        ]
    assert wrong == []


def test_generated_parts_are_up_to_date(generate: ModuleType) -> None:
    stale = [page.name for page in generate.documents() if generate.filled(text_of(page)) != text_of(page)]
    assert not stale, "run `make docs` and look at what changed"


def test_picture_shows_the_report_of_today(generate: ModuleType) -> None:
    drawn = re.sub(r"<[^>]*>", "", generate.PICTURE.read_text(encoding="utf-8"))
    shown = "".join(unescape(drawn).split())  # a sentence may be wrapped
    report = gpuscope.analyze(ROOT / generate.PICTURED).report
    assert "".join(first_lines(report).what.split()) in shown
    assert generate.PICTURE.stat().st_size < 150_000


# ---- codes ----


def sources(*packages: str) -> Iterator[str]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield text_of(path)


def documented_codes(heading: str) -> set[str]:
    return set(re.findall(r"^### `(\w+)`$", section("findings.md", heading), re.MULTILINE))


def test_every_cause_and_finding_is_documented_and_no_other() -> None:
    codes = {cause.finding_code for cause in CAUSES} | {*kinds()}
    assert documented_codes("## Causes and findings") == codes


def test_every_cause_says_how_it_is_found_what_helps_and_what_fools_it() -> None:
    for part in section("findings.md", "## Causes and findings").split("\n### ")[1:]:
        words = ("Recognised by", "Usually helps", "Misled by")
        assert all(f"**{word}**:" in part for word in words), part.splitlines()[0]


def test_every_cause_stands_in_the_definitions() -> None:
    table = section("definitions.md", "## Stalls: class and cause")
    causes = {cause.code for cause in CAUSES} - {UNDIVIDED_COMMUNICATION}
    assert set(re.findall(r"^\| \S+ \| \[`(\w+)`\]", table, re.MULTILINE)) == causes


# ---- the JSON report ----

NAMES = {f"slowdown.{which}by_{name}": name for which in ("", "explained.") for name in ("operation", "rank", "stage")}
NAMES |= {"trace.parallelism": "kind", "power[].held_frac": "reason", "findings[].facts": "fact"}
NAMES |= {"trace.setup.versions": "package", "trace.setup.variables": "variable", "trace.setup.settings": "argument"}
NAMES |= {"trace.clock.offset_ns": "rank", "trace.clock.drift_frac": "rank"}


def schema_keys(kind: Any, path: str = "") -> Iterator[str]:
    """Every key of a TypedDict as a dotted path; `[]` for elements, `{…}` for names that are data."""
    if is_typeddict(kind):
        for key, value in get_type_hints(kind).items():
            inner = f"{path}.{key}" if path else key
            yield inner
            yield from schema_keys(value, inner)
    elif get_origin(kind) is list:
        yield from schema_keys(get_args(kind)[0], f"{path}[]")
    elif get_origin(kind) is UnionType:
        for one in get_args(kind):
            yield from schema_keys(one, path)
    elif get_origin(kind) is dict:
        yield f"{path}.{{{NAMES.get(path, 'cause')}}}"


def report_keys(value: Any, known: set[str], path: str = "") -> Iterator[str]:
    """The keys of a real report, in the same notation."""
    if isinstance(value, dict):
        for key, item in value.items():
            inner = f"{path}.{key}" if path else key
            named = f"{path}.{{{NAMES.get(path, 'cause')}}}"
            inner = named if named in known else inner
            yield inner
            yield from report_keys(item, known, inner)
    elif isinstance(value, list):
        for item in value:
            yield from report_keys(item, known, f"{path}[]")


def test_report_keys_are_those_of_real_reports() -> None:
    known = set(schema_keys(Report))
    found: set[str] = set()
    # A sample trace gives none of these.
    empty = {
        "suggestions",
        "problems",
        "shared",
        "slowdown",
        "hang",
        "pipeline",
        "roles",
        "job_log",
        "nccl",
        "bandwidth",
        "traffic",
        "crossovers",
        "link_counters",
        "serving",
        "device_counters",
        "topology",
        "advice",
        "memory",
        "efficiency",
        "compute",
        "operator_work",
        "ideal",
        "power",
        "host_calls",
        "api_calls",
        "copies",
        "launches",
        "queues",
        "streams",
    }
    for sample in SAMPLES:
        report = json.loads(json.dumps(gpuscope.analyze(sample).report))
        found |= set(report_keys(report, known))
    assert found <= known
    missing = {key for key in known - found if key.split("[")[0].split(".")[0] not in empty}
    assert missing == {
        "ranks[].stall_ns.memory.{cause}",  # CPU training copies nothing
        "stragglers[].host_cause",  # of a late host beside a device
        "stragglers[].period",
        *(f"trace.clock.{key}.{{rank}}" for key in ("offset_ns", "drift_frac")),  # of several hosts
        "trace.setup.versions.{package}",  # the samples' environments are no part of them
        "trace.setup.variables.{variable}",
        "trace.setup.settings.{argument}",
        *(f"findings[].evidence[].{key}" for key in ("between", "sampled", "awaits")),
        "ranges[].update_ns",  # no sample hands its optimizer a closure
        "findings[].worst_share_frac",  # none is looked for rank by rank
        "experts.not_separable",
        *(f"steps[].batch.{key}" for key in BatchEntry.__annotations__),  # none is of a server
        "verdict.reason",  # none of the samples is without a verdict
        *(f"stragglers[].group{key}" for key in ("", ".ranks", ".by", ".name")),
    }


# ---- links, code blocks ----


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            names = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text_of(page))
            left += [target for name in names if (target := (page.parent / name).resolve()).is_file()]
    assert {page for page in PAGES if page not in reached} == set()


def readme_commands() -> list[str]:
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", text_of(ROOT / "README.md"), re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("gpuscope analyze sample_traces/")]


def test_readme_shows_commands_that_can_be_tried() -> None:
    assert len(readme_commands()) >= 3
    assert all(f"`make {target}`" in text_of(ROOT / "README.md") for target in ("demo", "test"))


def test_readme_names_every_extra() -> None:
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    named = re.findall(r"^\| `(\w+)` \|", text_of(ROOT / "README.md"), re.MULTILINE)
    assert set(named) == set(extras) - {"test", "check"}  # what the tests need is no user's affair


@pytest.mark.parametrize("line", readme_commands())
def test_readme_commands_run(line: str, tmp_path: Path) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    program = "from gpuscope.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()[1:]], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    assert snippets.source_of(ROOT / page)
    assert snippets.run(ROOT / page).failed == 0
