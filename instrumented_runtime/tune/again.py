"""`gpuscope again`: a recorded command once more, with changes, beside the run that it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.table import knob
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, option_texts
from gpuscope.instrumented_runtime.record.files.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import read_manifest
from gpuscope.instrumented_runtime.tune.followed import followed, otherwise, seen, the_one
from gpuscope.instrumented_runtime.tune.output_argument import with_output
from gpuscope.instrumented_runtime.tune.trial import GPUSCOPE
from gpuscope.recorded_environment import NAMES, TAKEN_OUT, allowed
from gpuscope.schema.document import Report
from gpuscope.store.location import located
from gpuscope.store.store import Store, opened

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
