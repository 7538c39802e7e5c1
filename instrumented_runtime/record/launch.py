"""`gpuscope record` around the command: folder and variables before it, the manifest after."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.launching import in_command, in_environment
from gpuscope.instrumented_runtime.record.applied.outcome import left_out
from gpuscope.instrumented_runtime.record.capture import nccl_files, nsys_capture
from gpuscope.instrumented_runtime.record.capture.on_demand import listen
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.files.manifest import Launch, Manifest
from gpuscope.instrumented_runtime.record.gloo.last_calls import mismatch
from gpuscope.instrumented_runtime.record.launched_rank import is_launcher, launched_rank
from gpuscope.instrumented_runtime.record.reduced_parts import check_apart, reduce_run
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RunFolder, read_manifest
from gpuscope.recorded_environment import kept
from gpuscope.sources.source import rank_in_name

COMPILE_LOGS = "compile"
"""Folder of torch.compile's logs in a run's."""
APPLIED = "applied"
"""Folder of changed copies of files that the command names."""
SHIM = Path(__file__).with_name("shim")
# How long ranks may take to write their traces after Ctrl-C before they are killed.
GRACE_S = 60.0


def record(
    command: Sequence[str],
    out: Path,
    options: RecordOptions,
    parts: Path | None = None,
    changes: Sequence[Change] = (),
) -> int:
    """Run `command` with `changes`, record it into `out`, report what was recorded, and return the command's exit code.
    With `parts` the small parts of the traces are written into that folder at the end.

    Raises `InputError` if the command does not exist, `UsageError` if `out` does or nsys is missing, and
    `GpuscopeError` if the command succeeded and nothing was recorded.
    """
    if options.profiler == "nsys" and shutil.which("nsys") is None:
        raise UsageError("nsys is not on PATH", hint="install Nsight Systems, or use --profiler torch")
    if parts is not None:
        check_apart(parts, out)
    launch = Launch(folder=os.getcwd(), variables=kept(os.environ), options=options.chosen())
    made = {one.name: one.value for one in changes}
    folder = RunFolder.create(out, command=command, launch=launch, changes=made)
    try:
        command, refused = in_command(command, changes, folder.path / APPLIED)
    except GpuscopeError:
        folder.finish("failed")
        raise
    environment = in_environment(changes, rank_environment(folder, options, os.environ))
    if options.on_demand:
        listen(folder.path)
    if options.profiler == "nsys" and _is_python(command):
        command = nsys_capture.command_under_nsys(command, folder.path, whole=options.whole)
        launched = launched_rank(environment)
        environment |= {nsys_capture.ENV_INSIDE: "1", nsys_capture.ENV_RANK: str(launched.rank if launched else 0)}
    try:
        exit_code, interrupted = _run(command, environment)
    except OSError as error:
        folder.finish("failed")
        raise InputError(f"can't run {command[0]}: {error.strerror}", hint="is it on PATH?") from None
    for path, kind in nccl_files.written_files(folder.path):
        folder.add_file(path, kind)
    for log in sorted((folder.path / COMPILE_LOGS).glob("*.log")):
        folder.add_file(log, "compile_log", rank=rank_in_name(log))
    for path, rank in nsys_capture.reports(folder.path):
        folder.add_file(path, "nsys", rank=rank)
    note_mismatch(folder, failed=exit_code != 0 and not interrupted)
    for told in [*refused, *left_out(folder.path)]:
        folder.problem("change_not_applied", told, severity="info")
        print("gpuscope:", told, file=sys.stderr)
    status = "interrupted" if interrupted else "completed" if exit_code == 0 else "failed"
    manifest = folder.finish(status, exit_code=exit_code)
    _report(folder.path, manifest)
    if exit_code == 0 and not manifest.files:
        raise GpuscopeError(
            f"{command[0]} succeeded, but nothing of it was recorded",
            hint="no process called a torch optimizer's step(): --whole records without steps",
        )
    if parts is not None:
        reduce_run(folder.path, parts)
    return exit_code


def note_mismatch(folder: RunFolder, *, failed: bool) -> None:
    """Say in manifest and on stderr where ranks of a failed job called different things, unless the hang watch did."""
    told = mismatch(folder.path / PARTS)
    if told is None or not failed or any(entry.code == "hang" for entry in read_manifest(folder.path).problems):
        return
    folder.problem("mismatched_calls", told)
    print("gpuscope:", told, file=sys.stderr)


def rank_environment(folder: RunFolder, options: RecordOptions, given: Mapping[str, str]) -> dict[str, str]:
    """The environment in which every rank of the command finds the recorder and the run folder."""
    path = folder.path
    environment = {**given, **folder.environment(), **options.to_environment()}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(SHIM), *([given["PYTHONPATH"]] if given.get("PYTHONPATH") else [])]
    )
    if options.flight_recorder:
        dumps = path / "flight_recorder"
        dumps.mkdir(exist_ok=True)
        # Not an empty string, on which torch aborts; NCCL's watchdog dumps by itself, gloo through ours.
        environment.setdefault("TORCH_FR_BUFFER_SIZE", str(options.flight_recorder))
        environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        environment.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(dumps / "nccl_trace_rank_"))
        environment.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(dumps / "nccl_trace_rank_"))
    if options.nccl_log:
        (path / nccl_files.FOLDER).mkdir(exist_ok=True)
        environment |= nccl_files.nccl_variables(path, given)
    if options.compile_logs:
        environment.setdefault("TORCH_TRACE", str(path / COMPILE_LOGS))
    return environment


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, bool]:
    """Exit code as a shell reports it (128 + signal), and whether Ctrl-C or SIGTERM stopped the command."""
    process = subprocess.Popen(command, env=environment)
    interrupted = 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal interrupted
        del frame
        interrupted = number
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        while True:
            try:
                code = process.wait(GRACE_S if interrupted else None)
                break
            except KeyboardInterrupt:
                # The terminal sent it to the command as well: let it write its traces.
                if interrupted:
                    kill_tree(process.pid)
                interrupted = signal.SIGINT
            except subprocess.TimeoutExpired:
                kill_tree(process.pid)
    finally:
        signal.signal(signal.SIGTERM, before)
    if interrupted:  # launchers then exit with codes of their own
        return 128 + interrupted, True
    return (code if code >= 0 else 128 - code), False


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants: a killed launcher leaves hung ranks behind."""
    kill(process_tree(pid))


def process_tree(pid: int) -> list[int]:
    """A process and its descendants. Children are found in /proc: elsewhere than on Linux it is the process itself."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of the command stands in parentheses and may hold anything.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [pid]
    for parent in tree:
        tree += children.get(parent, [])
    return tree


def kill(processes: Sequence[int]) -> None:
    """Kill those that there still are."""
    for each in processes:
        with contextlib.suppress(OSError):
            os.kill(each, signal.SIGKILL)


def _is_python(command: Sequence[str]) -> bool:
    """Whether the command is a plain Python script, whose process gets no rank from a launcher."""
    return Path(command[0]).name.startswith("python") and not is_launcher(command)


def _report(folder: Path, manifest: Manifest) -> None:
    """Report the outcome on stderr; stdout belongs to the command."""

    def say(*words: Any) -> None:
        print("gpuscope:", *words, file=sys.stderr)

    # The rank that ended first is the likelier cause; a killed rank has no end time.
    for rank in sorted(manifest.ranks, key=lambda rank: rank.ended_ns or 0):
        if rank.status != "completed":
            say(f"rank {rank.rank} {rank.status}" + (f": {rank.error}" if rank.error else ""))
    kinds: dict[str, int] = {}
    for entry in manifest.files:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    if kinds:
        say(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())), f"in {folder}")
        say(f"next: gpuscope analyze {folder}")
