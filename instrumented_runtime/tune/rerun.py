"""`gpuscope again`: a recorded command once more, with changes, beside the run that it was."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change, framework_arguments, knob
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, option_texts
from gpuscope.instrumented_runtime.record.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import rank_parts, read_manifest
from gpuscope.instrumented_runtime.tune.budget import DEFAULT
from gpuscope.instrumented_runtime.tune.measured import GPUSCOPE, with_output
from gpuscope.instrumented_runtime.tune.running import STEPS, default_folder
from gpuscope.instrumented_runtime.tune.running import Asked as running_Asked
from gpuscope.instrumented_runtime.tune.running import tune as tuned
from gpuscope.recorded_environment import NAMES, TAKEN_OUT, allowed
from gpuscope.schema.document import Report, SuggestionEntry
from gpuscope.schema.plan_document import TriedChange
from gpuscope.sources.run_manifest import run_folders
from gpuscope.store.location import located
from gpuscope.store.store import Store, opened

if TYPE_CHECKING:
    import pandas as pd


# `gpuscope.tune`: what was tried, as a DataFrame.


def tune(
    command: str | Sequence[str],
    *,
    budget: str | int = DEFAULT,
    out: str | os.PathLike[str] | None = None,
    steps: int = STEPS,
    allow: Sequence[str] = (),
    out_arg: str = "",
    nccl: bool = False,
) -> pd.DataFrame:
    """Follow the advice on a training command, one suggestion after the other, and keep what gains: `gpuscope tune`.

    `command` is words, or text as a shell splits it. `budget` is a number of runs or a time (`"20m"`), `out` a new
    folder for the recordings, `steps` how many are timed in each run, `allow` the groups of changes that may alter
    training, `out_arg` the script's argument that says where it writes; `nccl` searches NCCL's own settings, too.

    Returns a row per change that was tried; `attrs` has the rest of the document of `gpuscope tune --json`. Raises
    `UsageError` and `InputError` for what can't be tuned, `GpuscopeError` where the command as it stands fails.
    """
    import pandas as pd

    words = shlex.split(command) if isinstance(command, str) else list(command)
    folder = Path(out) if out is not None else default_folder()
    found = tuned(running_Asked(words, folder, str(budget), steps, allow, out_arg, nccl))
    table = pd.DataFrame(found["changes"], columns=list(get_type_hints(TriedChange)))
    table.attrs.update({key: value for key, value in found.items() if key != "changes"})
    return table


# Which of a run's suggestions another run follows, by the settings that the recorder saw in both.


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


AUTO = "auto"
_OF_THE_RUN = ("GPUSCOPE_", "TORCHELASTIC_", *sorted(NAMES))
"""Variables that say which process of which run one is: never those of another run."""


@dataclass(frozen=True)
class Asked:
    """What to run again, and how."""

    run: Path
    out: Path
    changes: Sequence[Change] = ()
    allow: Sequence[str] = ()
    suggestion: str | None = None
    store: Path | None = None
    keep: bool = True
    """Whether both runs go into the store."""
    diff: Sequence[str] = field(default_factory=tuple)
    """Options of `gpuscope diff` besides."""


def again(asked: Asked) -> int:
    """Run the command anew, compare both runs, and note in the store that the one was made of the other. Returns the
    exit code of the command where it fails, else that of the comparison.

    Raises `InputError` for what is no run folder, `UsageError` for what can't be run again or a suggestion that is not
    clear, where one was to be found.
    """
    manifest = read_manifest(asked.run)
    command, folder, variables = _launch(manifest, asked)
    if code := subprocess.run(command, cwd=folder, env=variables, check=False).returncode:
        print(f"gpuscope: the command ended with {code}; nothing to compare", file=sys.stderr)
        return code if code > 0 else 128 - code
    report = _analysed(asked.run, asked)
    _analysed(asked.out, asked)
    before, after = seen(asked.run), seen(asked.out)
    codes = followed(report, before, after)
    others = [] if codes else otherwise(report, before, after)
    for one in others:
        print(f"gpuscope: {one}", file=sys.stderr)
    codes = codes or [one.code for one in others]
    suggestion = the_one(report, before, after) if asked.suggestion == AUTO else asked.suggestion
    if suggestion is None and len(codes) == 1:
        suggestion = codes[0]
    words = [*GPUSCOPE, "diff", str(asked.run), str(asked.out), *asked.diff]
    words += ["--suggestion", suggestion] if suggestion else []
    if asked.keep:
        _linked(asked, suggestion)
    if suggestion is None and len(codes) > 1:
        print(f"gpuscope: several suggestions were followed: {', '.join(codes)}", file=sys.stderr)
    return subprocess.run(words, check=False).returncode


def _launch(manifest: Manifest, asked: Asked) -> tuple[list[str], str, dict[str, str]]:
    """The words, the folder and the environment that start the command anew."""
    words = manifest.command
    if not words:
        raise UsageError(f"{asked.run}: its manifest names no command", hint="gpuscope record -- COMMAND")
    if any(TAKEN_OUT in word for word in words):
        raise UsageError(
            f"{asked.run}: its command held secrets, which are not recorded", hint="gpuscope record --set … -- COMMAND"
        )
    launch = manifest.launch
    if launch is None and words[:2] == ["gpuscope", "train"]:
        if asked.changes:
            raise UsageError("gpuscope train has its own --set", hint="gpuscope train --set data.workers=4 …")
        return [*GPUSCOPE, *with_output(words[1:], "--out", asked.out)], os.curdir, dict(os.environ)
    folder, recorded, options = (launch.folder, launch.variables, launch.options) if launch else (os.curdir, None, {})
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: no such folder; the command ran there")
    made = [*GPUSCOPE, "record", "-o", str(asked.out), *as_words(options)]
    # What the run was started with stays, and was allowed then.
    changes = {**manifest.changes, **{change.name: change.value for change in asked.changes}}
    groups = {knob(name).allow for name in manifest.changes} - {""}
    for name, value in changes.items():
        made += ["--set", f"{name}={value}"]
    for group in sorted({*asked.allow, *groups}):
        made += ["--allow", group]
    return [*made, "--", *words], folder, _environment(recorded)


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Options of a recording as the command line has them. Those of another version are left out."""
    words: list[str] = []
    for name, text in option_texts().items():
        if name not in options:
            continue
        flag, value = text.flag or name.replace("_", "-"), options[name]
        if isinstance(getattr(RecordOptions, name), bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def _environment(recorded: Mapping[str, str] | None) -> dict[str, str]:
    """This environment, with the variables of the recorded run that change how a job runs in place of its own."""
    if recorded is None:
        return dict(os.environ)
    own = {name: value for name, value in os.environ.items() if not _of_the_job(name)}
    return {**own, **{name: value for name, value in recorded.items() if _of_the_job(name)}}


def _of_the_job(name: str) -> bool:
    return allowed(name) and not name.startswith(_OF_THE_RUN)


def _analysed(folder: Path, asked: Asked) -> Report:
    """The report of a run; it is in the store then, unless nothing is to be kept."""
    store = ["--store", str(located(asked.store))] if asked.keep else ["--no-store"]
    done = subprocess.run([*GPUSCOPE, "analyze", str(folder), "--json", *store], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise InputError(f"{folder}: could not be analysed", hint=f"gpuscope analyze {folder}")
    report: Report = json.loads(done.stdout)
    return report


def _linked(asked: Asked, suggestion: str | None) -> None:
    with opened(located(asked.store), write=True) as store:
        before, after = _number(store, asked.run), _number(store, asked.out)
        if before is not None and after is not None:
            store.link(before, after, suggestion, {change.name: change.value for change in asked.changes})


def _number(store: Store, folder: Path) -> int | None:
    """The last analysis of a run folder."""
    return next((int(row["id"]) for row in store.runs_of([str(folder)])), None)


def folder_of(named: str, store: Path | None) -> Path:
    """The run folder that a path or a number of the store names. Raises `InputError` and `UsageError`."""
    if not named.removeprefix("#").isdigit() or os.path.exists(named):
        return Path(named)
    number = int(named.removeprefix("#"))
    with opened(located(store)) as open_store:
        rows = open_store.runs("id = ?", [number])
    if not rows:
        raise UsageError(f"no run {number} in the store", hint="`gpuscope runs` lists them")
    return Path(rows[0]["paths"][0])
