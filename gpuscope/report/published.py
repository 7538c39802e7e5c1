"""JSON Schemas (draft 2020-12) of the documents that `--json` prints, made from the types that make these documents."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

from gpuscope import when_used
from gpuscope.errors import UsageError
from gpuscope.schema import bench_documents
from gpuscope.schema.diff_document import DIFF_VERSION, Diff
from gpuscope.schema.document import SCHEMA_VERSION, ProblemEntry, Report
from gpuscope.schema.plan_document import PLAN_VERSION, TUNE_VERSION, Plan, QueryDocument, TuneDocument
from gpuscope.when_used import TypedDict, dataclass

# What `gpuscope info --json` and `gpuscope runs --json` print. Times are ns, sizes bytes.


class InfoSource(TypedDict):
    """A file that was read."""

    path: str
    format: str
    format_version: str
    events: int
    ranks: list[int]
    world_size: int | None


class InfoRank(TypedDict):
    """A rank on one device; `device` is null where its training thread is the device."""

    rank: int
    device: int | None
    device_name: str | None
    host: str | None
    backend: str | None
    device_events: int
    window_ns: int | None
    steps: list[int]
    steps_basis: str | None


class Info(TypedDict):
    """What is in a trace, and what is missing."""

    sources: list[InfoSource]
    ranks: list[InfoRank]
    tables: dict[str, int]
    """Rows by table."""
    missing: list[str]
    problems: list[ProblemEntry]


class StoredRun(TypedDict):
    """A row of `gpuscope runs --json`; docs/history.md has the columns."""

    id: int
    key: str
    recorded_at: str
    analysed_at: str
    gpuscope_version: str
    report_version: int
    paths: list[str]
    options: dict[str, Any]
    label: str | None
    world_size: int | None
    ranks_present: int
    bound_by: str | None
    cause: str | None
    share_frac: float
    cause_share_frac: float | None
    confidence: float
    abstained: bool
    why: str
    steps: int
    step_ns: float | None
    window_ns: float | None


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LINK = when_used.pattern(r"\[([^]]+)\]\([\w./-]*#?[\w-]*\)")


@dataclass(frozen=True)
class Published:
    """A kind of document: its type, its version, and the commands that print it."""

    of: Any
    version: int
    commands: tuple[str, ...]


DOCUMENTS: Mapping[str, Published] = {
    "report": Published(Report, SCHEMA_VERSION, ("analyze", "hang", "runs show")),
    "diff": Published(Diff, DIFF_VERSION, ("diff", "check", "again")),
    "plan": Published(Plan, PLAN_VERSION, ("advise",)),
    "tune": Published(TuneDocument, TUNE_VERSION, ("tune",)),
    "info": Published(Info, 1, ("info",)),
    "query": Published(QueryDocument, 1, ("query",)),
    "runs": Published(list[StoredRun], 1, ("runs",)),
    "bench-collectives": Published(bench_documents.BenchCollectives, 1, ("bench collectives",)),
    "bench-transfers": Published(bench_documents.BenchTransfers, 1, ("bench transfers",)),
    "bench-scaling": Published(bench_documents.BenchScaling, 1, ("bench scaling",)),
    "bench-topology": Published(bench_documents.BenchTopology, 1, ("bench topology",)),
}


def json_schema(document: str, links: bool = False) -> dict[str, Any]:
    """The schema of a kind of document (`DOCUMENTS`), with the meaning of each key as its description.

    Descriptions may hold `links` into the manual, by pages of docs/; else only their text is left. Keys may be added
    within a version, so unknown ones are allowed. Raises `UsageError` for no such document.
    """
    if document not in DOCUMENTS:
        raise UsageError(f"no document {document!r}", hint=f"there are: {', '.join(DOCUMENTS)}")
    published = DOCUMENTS[document]
    made = msgspec.json.schema(published.of)
    meanings = dict(_meanings(published.of, set()))
    for name, definition in made.get("$defs", {}).items():
        for key, meaning in meanings.get(name, {}).items():
            definition["properties"][key] = {**definition["properties"][key], "description": meaning}
    made = made if links else _without_links(made)
    return {
        "$schema": DIALECT,
        "$id": f"urn:gpuscope:{document}:{published.version}",
        "title": f"gpuscope {document}",
        "description": f"What `gpuscope {' --json` and `gpuscope '.join(published.commands)} --json` print.",
        **made,
    }


def _without_links(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_links(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_links(inner) for inner in value]
    return _LINK.sub(r"\1", value) if isinstance(value, str) else value


def _meanings(kind: Any, seen: set[Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Of every TypedDict and dataclass below `kind`: its name, and the docstrings of its keys."""
    if _has_keys(kind):
        if kind in seen:
            return
        seen.add(kind)
        yield kind.__name__, of_keys(kind)
        for inner in get_type_hints(kind).values():
            yield from _meanings(inner, seen)
    for inner in get_args(kind):
        yield from _meanings(inner, seen)


def _has_keys(kind: Any) -> bool:
    return is_typeddict(kind) or is_dataclass(kind)


def of_keys(kind: type) -> dict[str, str]:
    """The strings that stand below the keys of a TypedDict or dataclass, its bases' too."""
    try:
        [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return {}  # written as a call, or without its source
    if not isinstance(body, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for name in (base.id for base in body.bases if isinstance(base, ast.Name)):
        base = vars(inspect.getmodule(kind))[name]  # Python 3.11 forgets the bases of a TypedDict
        found |= of_keys(base) if _has_keys(base) else {}
    for key, below in pairwise(body.body):
        if (
            isinstance(key, ast.AnnAssign)
            and isinstance(key.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[key.target.id] = " ".join(below.value.value.split())
    return found
