"""`gpuscope record` around the command: folder and variables before it, the manifest after."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.instrumented_runtime.record import flight_recorder_dumps, nsys_capture
from gpuscope.instrumented_runtime.record.applied.change import Change, in_command, in_environment
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.manifest import Launch, Manifest
from gpuscope.instrumented_runtime.record.nvml_samples import TRACES, mismatch
from gpuscope.instrumented_runtime.record.on_demand import listen
from gpuscope.instrumented_runtime.record.ranges import is_launcher, launched_rank
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RunFolder, rank_parts, read_manifest
from gpuscope.recorded_environment import kept
from gpuscope.sources.run_manifest import ended
from gpuscope.sources.source import rank_in_name
from gpuscope.words.units import plural

# NCCL's own files: the INFO log of each process, and the Inspector's JSONL where that was asked for.

INSPECTOR = "libnccl-profiler-inspector.so"
PLUGIN = "NCCL_PROFILER_PLUGIN"
FOLDER = "nccl"


def nccl_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make NCCL log into `folder`; nothing about its log where the user has set any of that, unless to
    have its choices logged (`TUNING`), which `gpuscope export --nccl-tuner` asks for: that log belongs into the
    folder."""
    wanted = {
        "NCCL_DEBUG": "INFO",
        # Written once, at start-up. TUNING, COLL and CALL write a line per collective, without bound.
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET",
        "NCCL_DEBUG_FILE": str(folder / FOLDER / "nccl.%h.%p.log"),
    }
    if "TUNING" in environment.get("NCCL_DEBUG_SUBSYS", ""):
        return {name: value for name, value in wanted.items() if name not in environment}
    return {} if set(wanted) & set(environment) else wanted


def inspector_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that load NCCL Inspector, but for those that the user has set."""
    wanted = {
        PLUGIN: str(find_inspector(environment)),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
        "NCCL_INSPECTOR_DUMP_DIR": str(folder / "nccl_inspector"),
    }
    return {name: value for name, value in wanted.items() if name not in environment}


def check_inspector(environment: Mapping[str, str]) -> None:
    """Raise `UsageError` where NCCL can't load the Inspector: it loads one plugin, and the user's stays."""
    theirs = environment.get(PLUGIN)
    if theirs and "inspector" not in theirs:
        raise UsageError(
            f"{PLUGIN}={theirs} is set, and NCCL loads one plugin", hint="unset it, or leave --nccl-inspector out"
        )
    if not theirs and find_inspector(environment) is None:
        raise UsageError(f"{INSPECTOR} is not found", hint="put its folder into LD_LIBRARY_PATH")


def find_inspector(environment: Mapping[str, str]) -> Path | None:
    """The Inspector plugin, in the library path or beside the NCCL of a wheel."""
    folders = [Path(entry) for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry]
    folders += [Path(entry, "nvidia", "nccl", "lib") for entry in sys.path]
    found = (folder / INSPECTOR for folder in folders)
    return next((path for path in found if path.is_file()), None)


def written_files(folder: Path) -> list[tuple[Path, str]]:
    """The files NCCL wrote, each with its kind. Empty logs are removed, so that gloo runs leave none."""
    files = []
    for log in sorted((folder / FOLDER).glob("*.log")):
        if log.stat().st_size:
            files.append((log, "nccl_log"))
        else:
            os.remove(log)
    files += [(path, "nccl_inspector") for path in sorted((folder / "nccl_inspector").rglob("*.log"))]
    files += [(path, "nccl_inspector") for path in sorted((folder / "nccl_inspector").rglob("*.json*"))]
    return files


COMPILE_LOGS = "compile"
"""Folder of torch.compile's logs in a run's."""
APPLIED = "applied"
"""Folder of changed copies of files that the command names."""
SHIM = Path(__file__).with_name("shim")


def record(
    command: Sequence[str],
    out: Path,
    options: RecordOptions,
    parts: Path | None = None,
    changes: Sequence[Change] = (),
) -> int:
    """Run `command` with `changes`, record it into `out`, report what was recorded, and return the command's exit code.
    With `parts` the small parts of the traces are written into that folder at the end.

    Raises `InputError` if the command does not exist, `UsageError` if `out` does or nsys is missing.
    """
    _check_tools(options)
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
    if options.on_request:
        listen(folder.path)
    if options.profiler == "nsys" and _is_python(command):
        command = nsys_capture.command_under_nsys(command, folder.path, whole=options.whole)
        launched = launched_rank(environment)
        environment |= {nsys_capture.ENV_INSIDE: "1", nsys_capture.ENV_RANK: str(launched.rank if launched else 0)}
    try:
        exit_code, interrupted = _run(command, environment, options.grace_s)
    except OSError as error:
        folder.finish("failed")
        raise InputError(f"can't run {command[0]}: {error.strerror}", hint="is it on PATH?") from None
    _list_files(folder)
    note_mismatch(folder, failed=exit_code != 0)
    told = [("change_not_applied", words) for words in [*refused, *left_out(folder.path)]]
    for code, words in told:
        folder.problem(code, words, severity="info")
        print("gpuscope:", words, file=sys.stderr)
    if exit_code == 0:
        note_unclosed(folder)
    status = "interrupted" if interrupted else "completed" if exit_code == 0 else "failed"
    manifest = folder.finish(status, exit_code=exit_code)
    _report(folder.path, manifest)
    if parts is not None and manifest.files:
        reduce_run(folder.path, parts)
    return exit_code


def _check_tools(options: RecordOptions) -> None:
    """Raise `UsageError` where a tool that was asked for is not there, or is there already."""
    if options.profiler == "nsys" and shutil.which("nsys") is None:
        raise UsageError("nsys is not on PATH", hint="install Nsight Systems, or use --profiler torch")
    if options.profiler == "nsys" and nsys_capture.nsys_around(os.environ):
        raise UsageError("this runs under nsys already", hint="start gpuscope record itself: it runs nsys in each rank")
    if options.nccl_inspector:
        check_inspector(os.environ)


def _list_files(folder: RunFolder) -> None:
    """List what others than the ranks' captures wrote."""
    for path, kind in written_files(folder.path):
        folder.add_file(path, kind)
    for log in sorted((folder.path / COMPILE_LOGS).glob("*.log")):
        folder.add_file(log, "compile_log", rank=rank_in_name(log))
    for path, rank in nsys_capture.reports(folder.path):
        folder.add_file(path, "nsys", rank=rank)
    for path, rank in flight_recorder_dumps.collected(folder.path, since_ns=folder.run.started_ns):
        folder.add_file(path, "flight_recorder", rank=rank)


def note_unclosed(folder: RunFolder) -> None:
    """Say of a command that succeeded which ranks ended without a word, and whether none has recorded at all."""
    parts = rank_parts(folder.path)
    told = [
        ("not_closed", f"rank {part.rank} ended at once, as os._exit in C does: what it had not written is lost")
        for part in parts
        if part.ended_ns is None
    ]
    if not parts and not folder.run.files:
        why = "no process called a torch optimizer's step(); --whole records without steps"
        told.append(("nothing_recorded", f"nothing was recorded: {why}"))
    for code, words in told:
        folder.problem(code, words, severity="data_loss")
        print("gpuscope:", words, file=sys.stderr)


def note_mismatch(folder: RunFolder, *, failed: bool) -> None:
    """Where ranks of a job that failed or was interrupted called different things: say so in manifest and on stderr,
    and leave their last calls as dumps to those that left none; unless the hang watch did."""
    found = mismatch(folder.path / PARTS)
    if found is None or not failed or any(entry.code == "hang" for entry in read_manifest(folder.path).problems):
        return
    folder.problem("mismatched_calls", found.told)
    print("gpuscope:", found.told, file=sys.stderr)
    lives = {part.rank: part.restart for part in rank_parts(folder.path)}
    for rank, call in found.calls.items():
        life = f"restart{lives[rank]}" if lives.get(rank) else ""
        path = folder.path / life / flight_recorder_dumps.FOLDER / f"{flight_recorder_dumps.PREFIX}{rank}"
        if not path.exists():
            flight_recorder_dumps.write(path, flight_recorder_dumps.filled({}, [call.group], [call]))
            folder.add_file(path, "flight_recorder", rank=rank)


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
    if options.always:
        environment.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")  # else Flight Recorder has no durations
    if options.nccl_log:
        (path / FOLDER).mkdir(exist_ok=True)
        environment |= nccl_variables(path, given)
    if options.nccl_inspector:
        environment |= inspector_variables(path, given)
    if options.compile_logs:
        environment.setdefault("TORCH_TRACE", str(path / COMPILE_LOGS))
    return environment


def _run(command: Sequence[str], environment: dict[str, str], grace_s: float) -> tuple[int, bool]:
    """Exit code as a shell reports it (128 + signal), and whether Ctrl-C or SIGTERM stopped the command; what has not
    ended `grace_s` later is killed."""
    process = subprocess.Popen(command, env=environment)
    interrupted = 0

    def on_signal(number: int, frame: object) -> None:
        nonlocal interrupted
        del frame
        if number == signal.SIGALRM or interrupted == number == signal.SIGINT:
            print("gpuscope: it is killed now", file=sys.stderr)
            kill_tree(process.pid)
        elif not interrupted:
            interrupted = number
            print(f"gpuscope: the command has {grace_s:g} s to end (--grace)", file=sys.stderr)
            signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))
        if number == signal.SIGTERM:  # Ctrl-C came from the terminal, to the command as well
            process.send_signal(number)

    heeded = [signal.SIGTERM, signal.SIGALRM]
    heeded += [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
    before = {number: signal.signal(number, on_signal) for number in heeded}
    try:
        code = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
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


_NO_TRACE = {"environment", "topology", "steps", "collectives", "stacks"}
"""Files that say nothing without a trace beside them."""


def _report(folder: Path, manifest: Manifest) -> None:
    """Report the outcome on stderr; stdout belongs to the command."""

    def say(*words: Any) -> None:
        print("gpuscope:", *words, file=sys.stderr)

    end = ended(folder)
    for failure in end.failures if end is not None else ():
        say(failure)
    if end is not None and end.killed and (settings := debug_settings(os.environ)):
        say(f"debug settings in force, of which some have torch end the job itself: {', '.join(settings)}")
    kinds: dict[str, int] = {}
    for entry in manifest.files:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    if kinds:
        say(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())), f"in {folder}")
    own = _script_traces(folder)
    places = list(dict.fromkeys(str(Path(path).parent) for path in own))
    if own:
        say(f"the script's own profiler wrote {plural(len(own), 'trace')} into {', '.join(places)}")
    read = kinds.keys() - _NO_TRACE
    if read - {"flight_recorder"}:
        say(f"next: gpuscope analyze {folder}")
    elif own:
        say(f"next: gpuscope analyze {places[0]}")
    elif read and manifest.status != "completed":  # what waits at the end of a job that failed is why it stood
        say(f"next: gpuscope hang {folder}")


DEBUG_SETTINGS = (
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_NAN_CHECK",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_CPP_LOG_LEVEL",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "NCCL_DEBUG",
    "NCCL_LAUNCH_MODE",
    "NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING",
)
"""Variables under which torch or NCCL checks, waits or ends a job differently."""


def debug_settings(environment: Mapping[str, str]) -> list[str]:
    """`NAME=value` of those that the user has set."""
    return [f"{name}={environment[name]}" for name in DEBUG_SETTINGS if environment.get(name)]


def _script_traces(folder: Path) -> list[str]:
    """The traces that profilers of the script wrote elsewhere, of all ranks."""
    return list(dict.fromkeys(path for part in rank_parts(folder) for path in part.facts.get(TRACES) or ()))


def left_out(folder: Path) -> Iterator[str]:
    """A line per change that no rank could make, or not everywhere, with the places and reasons."""
    ranks = [part.facts["applied"] for part in rank_parts(folder) if "applied" in part.facts]
    for name in ranks[0] if ranks else ():
        rows = [rank[name] for rank in ranks if name in rank]
        times = sum(row["times"] for row in rows)
        refusals = dict.fromkeys(
            f"at {one['where']}: {one['why']}" if one["where"] else one["why"] for row in rows for one in row["not"]
        )
        change = f"{name}={rows[0]['value']}"
        if refusals:
            yield f"{change} was not applied{' everywhere' if times else ''}: {'; '.join(refusals)}"
        elif not times:
            yield f"{change} was not applied: the script made nothing that takes it"


def check_apart(parts: Path, folder: Path) -> None:
    """Raise `UsageError` where the parts would lie inside the run folder: analysed with it, each rank would be there
    twice."""
    if folder.resolve() in (parts.resolve(), *parts.resolve().parents):
        raise UsageError(
            f"--reduce {parts} is inside the run folder", hint="name a folder beside it, such as one all nodes share"
        )


def reduce_run(folder: Path, parts: Path) -> bool:
    """Write the parts of a run folder's traces into `parts`; whether that was done. Says on stderr what it did.

    A process of its own, since the recorder stands on no analysis, and memory that the analysis takes is gone with it.
    """
    command = [sys.executable, "-m", "gpuscope", "reduce", str(folder), "-o", str(parts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("gpuscope:", done.stdout.strip() or f"not reduced; the traces are in {folder}", file=sys.stderr)
    return done.returncode == 0
