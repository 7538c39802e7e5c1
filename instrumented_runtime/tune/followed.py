"""Which of a run's suggestions another run follows, by the settings that the recorder saw in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.launching import framework_arguments
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion
from gpuscope.instrumented_runtime.record.applied.table import knob
from gpuscope.instrumented_runtime.record.files.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import rank_parts, read_manifest
from gpuscope.schema.document import Report, SuggestionEntry
from gpuscope.sources.run_manifest import run_folders


@dataclass(frozen=True)
class Seen:
    """The settings in effect in a run, over its ranks, and the command."""

    settings: Mapping[str, frozenset[str]]
    command: Sequence[str]

    def number(self, name: str) -> int | None:
        """The value of a setting, where it has one that is a number."""
        values = self.settings.get(name, frozenset())
        (value,) = values if len(values) == 1 else ("",)
        return int(value) if value.isdigit() else None

    def shows(self, change: Change, before: Seen) -> bool:
        """Whether a change of the run before is in effect here."""
        values, old = self.settings.get(change.name, frozenset()), before.settings.get(change.name, frozenset())
        if change.name.startswith(PREFIX) and change.value == UNSET:
            return not values and bool(old)
        if change.times is not None:
            return bool(old) and values == {str(change.number(int(one))) for one in old if one.isdigit()}
        if change.value in values:
            return values != old
        words = framework_arguments(before.command, change)
        return words is not None and words != list(before.command) and words == list(self.command)


def seen(folder: Path) -> Seen:
    """What a run folder tells of its settings. Raises `InputError`."""
    manifest = read_manifest(folder)
    found: dict[str, set[str]] = {}
    for part in rank_parts(folder):
        for name, rows in (part.facts.get("settings") or {}).items():
            found.setdefault(name, set()).update(str(row["value"]) for row in rows)
        for name, row in (part.facts.get("applied") or {}).items():
            if row.get("times"):
                found.setdefault(name, set()).add(str(row["value"]))
    for name, value in _variables(manifest):
        found.setdefault(f"{PREFIX}{name}", {value})
    for name, value in manifest.changes.items():
        if knob(name).how == "framework option":
            found.setdefault(name, set()).add(value)
    return Seen({name: frozenset(values) for name, values in found.items()}, manifest.command)


def followed(report: Report, before: Seen, after: Seen) -> list[str]:
    """Codes of the suggestions of the report before whose changes are all in effect after, and were not before."""
    codes = []
    for entry in report["suggestions"]:
        changes = _changes(entry)
        if changes and all(after.shows(change, before) or _same(change, before, after) for change in changes):
            codes += [entry["code"]] if any(after.shows(change, before) for change in changes) else []
    return list(dict.fromkeys(codes))


@dataclass(frozen=True)
class Otherwise:
    """A suggestion that was followed, with another value than it advised."""

    code: str
    name: str
    value: str
    advised: str

    def __str__(self) -> str:
        return f"{self.code}: followed with {self.name}={self.value} instead of {self.advised}"


def otherwise(report: Report, before: Seen, after: Seen) -> list[Otherwise]:
    """Suggestions of the report before whose setting, a number, the run after has at another value that lies on the way
    from the old one to the advised one, or beyond that. Those followed to the letter are not among them."""
    found: dict[str, Otherwise] = {}
    exact = followed(report, before, after)
    for entry in report["suggestions"]:
        for change in _changes(entry):
            old, new = before.number(change.name), after.number(change.name)
            wanted = change.number(old)
            if wanted is None or new is None or entry["code"] in exact or new == old:
                continue
            if old is None or (new - old) * (wanted - old) > 0:
                one = Otherwise(entry["code"], change.name, f"{new}", f"{wanted}")
                found.setdefault(entry["code"], one)
    return list(found.values())


def the_one(report: Report, before: Seen, after: Seen) -> str:
    """The code of the one suggestion that was followed, if need be with another value. Raises `UsageError` where
    that is none or several."""
    codes = followed(report, before, after)
    if not codes:
        codes = [one.code for one in otherwise(report, before, after)]
    if len(codes) == 1:
        return codes[0]
    named = list(dict.fromkeys(entry["code"] for entry in report["suggestions"]))
    if codes:
        raise UsageError(
            f"the settings of the run after follow several suggestions: {', '.join(codes)}",
            hint="name one: --suggestion CODE",
        )
    raise UsageError(
        "the settings of the runs do not show which suggestion was followed",
        hint=f"name it: --suggestion {' or '.join(named)}" if named else "the run before makes none",
    )


def of_reports(before: Report, after: Report) -> str:
    """As `the_one`, by the run folders of the reports' traces. Raises `UsageError` where there are none."""
    return the_one(before, seen(_folder(before, "before")), seen(_folder(after, "after")))


def _folder(report: Report, word: str) -> Path:
    for folder in run_folders(Path(source["path"]) for source in report["trace"]["sources"]):
        return folder
    raise UsageError(
        f"the run {word} has no run folder at hand, so its settings are not known", hint="name it: --suggestion CODE"
    )


def _changes(entry: SuggestionEntry) -> Sequence[Change]:
    try:
        return from_suggestion(entry["setting"], entry["code"], entry.get("facts", {})) or ()
    except GpuscopeError:
        return ()


def _same(change: Change, before: Seen, after: Seen) -> bool:
    """Whether a change was in effect in both."""
    own: Any = after.settings.get(change.name)
    return bool(own) and change.value in own and before.settings.get(change.name) == own


def _variables(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield from (manifest.launch.variables if manifest.launch is not None else {}).items()
