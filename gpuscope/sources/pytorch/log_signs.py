"""Lines of a job's logs that tell why a rank may have stopped: its end, errors of its GPU, of the network, of torch."""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.recorded_environment import redacted
from gpuscope.when_used import dataclass

# Stacks in text: what faulthandler and py-spy print, alone or within a log.
#
# faulthandler prints threads from the newest to the oldest, which is the main one; py-spy names it.

FRAMES = 64
_FAULT = when_used.pattern(
    r"(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>[^]]*)\])? \(most recent call first\):\s*$"
)
_FAULT_FRAME = when_used.pattern(r'\s+File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$')
_CODE = when_used.pattern(r"\s{4,}(?P<code>\S.*?)\s*$")
_SPY = when_used.pattern(
    r'Thread (?P<tid>\d+|0x[0-9A-Fa-f]+) \((?:idle|active)(?P<gil>\+gil)?\)(?:: "(?P<name>.*)")?\s*$'
)
_SPY_FRAME = when_used.pattern(r"\s{4}(?P<name>\S.*?) \((?P<place>[^()\s]+)\)\s*$")
_PROCESS = when_used.pattern(r"Process (\d+): ")
_BEGINNINGS = ("Process ", "Thread ", "Current thread ")
"""Of the lines that begin a stack or name its process."""
STACK_TEXT_MARKS = ("(most recent call first):", '): "MainThread"')


@dataclass
class Stack:
    """One thread's frames, innermost first."""

    thread: str
    main: bool = False
    gil: bool | None = None
    pid: int | None = None
    rank: int | None = None
    frames: list[str] = field(default_factory=list)


def frame(name: str, file: str, line: object = "") -> str:
    """A frame as the table `host_stacks` has it."""
    return f"{name} ({file}:{line})" if line != "" else f"{name} ({file})"


class StackReader:
    """Takes the lines of a text one by one; `finished` then gives its stacks."""

    def __init__(self) -> None:
        self._stacks: list[Stack] = []
        self._current: Stack | None = None
        self._block: list[Stack] = []
        """faulthandler's threads of one dump."""
        self._pid: int | None = None

    def feed(self, line: str, rank: int | None) -> bool:
        """Whether the line belongs to a stack."""
        if not line.startswith(_BEGINNINGS):
            return self._frame(line)
        if (match := _PROCESS.match(line)) is not None:
            self._pid = int(match[1])
            return True
        if (match := _FAULT.match(line)) is not None:
            self._begin(Stack(match["name"] or match["id"], rank=rank))
            self._block.append(self._stacks[-1])
            return True
        if (match := _SPY.match(line)) is not None:
            self._end_block()
            name = match["name"] or match["tid"]
            self._begin(Stack(name, name == "MainThread", match["gil"] is not None, self._pid, rank))
            return True
        return self._frame(line)

    def _begin(self, stack: Stack) -> None:
        self._current = stack
        self._stacks.append(stack)

    def _frame(self, line: str) -> bool:
        own = self._current
        if own is None:
            return False
        for pattern in (_FAULT_FRAME, _SPY_FRAME):
            if (match := pattern.match(line)) is not None:
                place = match["place"] if pattern is _SPY_FRAME else f"{match['file']}:{match['line']}"
                if len(own.frames) < FRAMES:
                    own.frames.append(frame(match["name"], place))
                return True
        if own.frames and self._block and "\t" not in own.frames[-1] and (match := _CODE.match(line)) is not None:
            own.frames[-1] += f"\t{match['code']}"
            return True
        if line.strip():
            self._current = None
            self._end_block()
        return False

    def _end_block(self) -> None:
        if self._block:
            self._block[-1].main = True
        self._block = []

    def finished(self) -> Iterator[Stack]:
        """The stacks that have frames."""
        self._end_block()
        return (stack for stack in self._stacks if stack.frames)


# Pickles that may come from anywhere, read without running what is in them.
#
# A pickle is a program; one that names a class or function can do anything when it is loaded. Here none may be
# named: what can come out are dicts, lists, tuples, sets, strings, bytes, numbers, booleans and None.


class _PlainUnpickler(pickle._Unpickler):
    """Refuses every name and every persistent id, before anything is imported.

    The one written in Python: the one in C sets aside as much memory as the pickle's memo indices ask for.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(
            f"names {module}.{name}, and a pickle that names classes or functions can run any program",
            hint="a dump holds only plain data; take this one for damaged or hostile",
        )

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the signature is pickle's
        raise InputError("refers to objects outside of itself")


def loads(data: bytes) -> Any:
    """The plain data of a pickle. Raises `InputError` for one that names anything, is cut off, or is none."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except EOFError as error:
        raise InputError("is cut off", hint="was the job killed while it wrote?") from error
    except Exception as error:  # a damaged pickle fails in any way there is, also with MemoryError
        if not data.endswith(pickle.STOP):
            raise InputError("is cut off", hint="was the job killed while it wrote?") from error
        raise InputError(f"is not a pickle of plain data ({error})") from error


MOST = 32
"""Lines kept of one sign and rank: a log may repeat one for hours."""
LONGEST = 1200
"""Characters kept of a line: torch's message on memory lists every process of the GPU before the figures that count."""
_HARDWARE_XIDS = "48|63|64|74|79|94|95"
"""Errors of memory, NVLink and bus by NVIDIA's numbers; 13, 31, 43 and 45 follow from what a program did."""
_SIGNS: tuple[tuple[str, str], ...] = (
    (
        "watchdog_stuck",
        r"watchdog got stuck for|Heartbeat monitor timed out|detected no heartbeat of its watchdog"
        r"|ProcessGroup\w+ watchdog hang\b",
    ),
    ("timed_out", r"[Ww]atchdog caught collective operation timeout|Timed out waiting \d+ ?ms for \w+ operation"),
    ("dump_signal", r"Received a dump signal due to a collective timeout|Observed flight recorder dump signal"),
    ("gil", r"Could not acquire GIL within"),
    ("lagging", r"are the lagging ranks|failed to pass monitoredBarrier"),
    (
        "out_of_memory_host",
        r"Out of memory: Killed process|out of memory: Killed process|oom[-_]kill\b|oom_kill event"
        r"|can't allocate memory: you tried to allocate|srun: error: .*Out Of Memory",
    ),
    ("out_of_memory", r"(?:CUDA|HIP|XPU|NPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError"),
    (
        "gpu_error",
        r"NVRM: Xid \([^)]*\): (?:"
        + _HARDWARE_XIDS
        + r")\b|\b[Xx][Ii][Dd][ :=]+(?:error )?(?:"
        + _HARDWARE_XIDS
        + r")\b|[Uu]ncorrectable (?:ECC|NVLink)|fallen off the bus|GPU is lost",
    ),
    (
        "driver_error",
        r"NVRM: Xid \([^)]*\): (?!(?:13|31|43|45)\b)\d|(?:CUDA|HIP) error: (?:initialization error|unkno"
        r"wn error|no (?:CUDA-capable )?device|.*driver version is ins|system not yet initialized|.*busy or unavail)",
    ),
    (
        "program_error",
        r"NVRM: Xid|(?:CUDA|HIP)(?: driver)? error: (?!out of memory)|device-side assert triggered"
        r"|Cuda failure (?:\d+ )?'(?!out of memory)|\.cu(?:h|da)?:\d+: .*block: \[.*Assertion .* failed",
    ),
    (
        "network",
        r"\bibv_\w+ failed|NET/IB ?:.*(?:Got completion .*(?:error|status)|port error|device fatal)"
        r"|transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR|No route to host|Network is unreachable",
    ),
    ("peer_closed", r"[Cc]onnection (?:closed|reset) by (?:remote )?peer"),
    ("killed", r"^\S*\s*line \d+: +\d+ Killed\b|srun: error: .*\btasks? [\d,-]+: Killed"),
    ("crashed", r"Fatal Python error: (?!Aborted)|srun: error: .*(?:Segmentation fault|Bus error)"),
    ("debugger", r"^\(Pdb\)|^ipdb>|debugpy.*[Ww]aiting for client"),
    ("test_failed", r": Test (?:\w+ )?failure \S"),
    ("nccl_warning", r"\bNCCL WARN\b"),
)
SIGNS = {name: when_used.pattern(pattern) for name, pattern in _SIGNS}
REMARKS = frozenset({"nccl_warning", "test_failed", "last_line", "progress"})
"""Signs that a job may show that neither hung nor failed; they say more of one that did."""
_ANY = when_used.pattern("|".join(f"(?:{pattern})" for _, pattern in _SIGNS), re.MULTILINE)
_SIGN_WORDS = (
    "got stuck for",
    "Heartbeat monitor",
    "detected no heartbeat",
    "watchdog hang",
    "collective operation timeout",
    "Timed out waiting",
    "dump signal",
    "acquire GIL",
    "lagging ranks",
    "monitoredBarrier",
    "Killed",
    "oom-kill",
    "oom_kill",
    "oomkill",
    "can't allocate memory",
    "Out Of Memory",
    "out of memory",
    "OutOfMemoryError",
    "ncorrectable ",
    "fallen off",
    "GPU is lost",
    "CUDA error",
    "HIP error",
    "driver error",
    "device-side assert",
    "Cuda failure",
    "Assertion ",
    "ibv_",
    "NET/IB",
    "transport retry",
    "IBV_WC",
    "No route to host",
    "Network is unreach",
    "onnection closed",
    "onnection reset",
    "Fatal Python",
    "srun: error",
    "(Pdb)",
    "ipdb>",
    "debugpy",
    ": Test ",
    "NCCL WARN",
)
"""Every sign has one of them, or `xid` in small or large letters: they are looked for first, as `_ANY`
takes many times longer."""
_CONSEQUENCE = when_used.pattern(
    r"NCCL|c10d|[Ww]atchdog|[Cc]onnection|gloo|DistBackendError|DistNetworkError|DistStoreError|KeyboardInterrupt|"
    r"SystemExit|ChildFailedError|SignalException|[Tt]imed? ?out|Detected mismatch"
)
"""Exceptions of ranks that lost or waited for another one: no first cause."""
_STAMP = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\]?\s+"
_HOST = r"[A-Za-z][\w.-]*:\s+"
_LABEL = when_used.pattern(
    rf"(?:{_STAMP})?(?:{_HOST}(?=\[(?:rank|default|\d+,)\s?\d))?"
    r"(?:\[[Rr]ank[ :]{0,2}(?P<rank>\d{1,7})\]:?\s?"
    r"|\[(?:[^\]\s]*@)?\d+,(?P<mpi>\d{1,7})\]<std(?:out|err)>:\s?"
    r"|\[(?:default|trainer|worker)(?P<local>\d{1,4})\]:\s?"
    r"|\s{0,3}(?P<task>\d{1,7}): )"
)
"""What stands before a line: torch's and Lightning's rank, Open MPI's tag, torchrun's role with the local rank, srun's
label; a time stamp or the host's name before that."""
_TORCH_LABEL = re.compile(r"(?=\[rank\d{1,7}\]:)")
_RANK = when_used.pattern(r"\[\s?[Rr](?:ank|ANK)[ :=]{0,2}(\d{1,7})\s?\]|\b[Rr]ank (\d{1,7})\]|\btasks? (\d{1,7}):")
_PID = when_used.pattern(r"Killed process (\d+)|line \d+: +(\d+) Killed|NVRM: Xid .*\bpid='?(\d+)")
_LAGGING = when_used.pattern(r"[Rr]anks? \[?([\d, ]+?)\]? (?:are the lagging|failed to pass)")
_GROUP = when_used.pattern(
    r"\[PG (?:ID \d+ PG )?(?:GUID )?(?P<group>[^\s(\]]+) ?(?:\((?P<described>[^)]*)\))? Rank (?P<rank>\d{1,7})\]"
)
_WORK = when_used.pattern(
    r"(?:(?:sequence id|at (?:NCCL )?work): (?P<waited>-?\d+).*?)?"
    r"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d+), last completed (?:\w+ )?work: (?P<completed>-?\d+)"
)
PERIODIC = "Work update periodically"
"""torch's report on a job that goes on, which looks like the one after a time-out."""
_WAITED = when_used.pattern(
    r"Work[A-Z]\w*\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<into>\d+), NumelOut=(?P<out>\d+))?"
)
_GLOO = when_used.pattern(r"Timed out waiting \d+ ?ms for (\w+) operation")
_SIGNALLED = when_used.pattern(r"collective timeout from\s+rank (\d{1,7})")
_FINGERPRINT = when_used.pattern(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?(.*?)"
    r"(?:, TensorDeviceTypes|\)(?:, but|\.)|, but|$)"
)
_EXCEPTION = when_used.pattern(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?$")
_ROOT, _OF_RANK = "Root Cause (first observed failure)", when_used.pattern(r"^\s+rank\s+: (\d{1,7}) ")
_EXIT = when_used.pattern(r"^\s+exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_KILLED, _CONSEQUENT = -9, (-6, -15, -2, 1)
"""Exit codes: torch aborts a rank that waited too long, launchers end the others. 1 is an exception's, told before."""
MARKS = ("Traceback (most recent call last)", _ROOT, "ast enqueued", "Detected mismatch between collectives")
_FRAME = when_used.pattern(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+?)\s*$')
_LIBRARY = when_used.pattern(r"(?:site|dist)-packages/|/lib/python\d|/torch/|^<")
_NEAR = 40
"""Lines between a frame of a traceback and the error that it ends in."""
_PLACED = frozenset({"out_of_memory", "program_error", "crashed", "gpu_error"})
_OF_TORCH = when_used.pattern(r"^\[?[EWIF]\d{3,4} \d\d:|^frame #|^Exception raised from|^\s*$|^={5,}|^-{5,}")
"""Lines of the C++ side and of launchers, which say nothing of what a program did last."""
_PROGRESS = when_used.pattern(
    r"\b(?:(?:global_|train_)?step|iter(?:ation)?)\b['\"]?\s?[\[:=# ]\s?\[?\s*[1-9]\d*|\d(?:it/s|s/it)\b|'loss': ",
    re.IGNORECASE,
)
_SIZES = when_used.pattern(
    r"(?<![\w-])WORLD_SIZE['\"]?[=:]\s?['\"]?(?P<environment>\d{1,6})\b"
    r"|(?<!parallel )(?<![\w-])(?:distributed_)?world[ _]size['\"]?\s?(?:is |of |[:=(]\s?)?(?P<printed>\d{1,6})\b"
    r"|MEMBER: \d+/(?P<lightning>\d{1,6})\b"
    r"|\b(?:mpirun|mpiexec)\b.*? (?:-np|--np|-n) (?P<mpi>\d{1,6})\b"
    r"|\bsrun\b.*? (?:-n |--ntasks[= ])(?P<slurm>\d{1,6})\b|SLURM_NTASKS=(?P<tasks>\d{1,6})\b"
    r"|\baccelerate launch\b.*?--num_processes[= ](?P<accelerate>\d{1,6})\b",
    re.IGNORECASE,
)
_SIZE_MARKS = ("orld", "WORLD", "MEMBER", "mpi", "srun", "SLURM", "torchrun", "torch.distributed", "accelerate launch")
_LAUNCH = 50_000
"""Lines within which a job says how large it is."""
_TORCHRUN = when_used.pattern(r"\b(?:torchrun|torch\.distributed\.(?:run|launch))\b")
_PER_NODE, _NODES = (when_used.pattern(rf"--{name}[= ](\d{{1,6}})\b") for name in ("nproc[_-]per[_-]node", "nnodes"))


@dataclass(frozen=True)
class Sign:
    """A line that tells something; `rank` as the line says it, `pid` where it names a process instead; `place` is the
    line of the program that a traceback around it names."""

    sign: str
    text: str
    line: int
    rank: int | None
    pid: int | None = None
    place: str = ""


@dataclass(frozen=True)
class Work:
    """How far a rank's watchdog says that it had got in a group."""

    rank: int
    group: str
    enqueued: int
    completed: int


@dataclass(frozen=True)
class Timeout:
    """An operation that a rank waited for until its time was up. Numbers are None where the message lacks them; the
    group is empty where no line names it."""

    rank: int
    told_by: str
    """`watchdog`, or `gloo`, whose message names neither group nor number."""
    group: str
    seq: int | None
    op: str
    numel_in: int | None = None
    numel_out: int | None = None


def plain(line: str) -> tuple[str, int | None, int | None]:
    """A line without what torch or a launcher writes before it, and the rank and the local rank that stood there."""
    rank = local = None
    while (match := _LABEL.match(line)) is not None:
        number = match["rank"] or match["mpi"] or match["task"]
        rank = int(number) if number and rank is None else rank
        local = int(match["local"]) if match["local"] else local
        line = line[match.end() :]
    return line, rank, local


def pieces(line: str) -> list[str]:
    """The lines that ranks wrote into one: a progress bar has no end of line, so torch's message stands behind it."""
    if "\r" in line:
        line = line.rstrip("\r").rpartition("\r")[2]
    if line.count("[rank") == line.startswith("[rank"):
        return [line]
    first, *others = _TORCH_LABEL.split(line)
    if not others:
        return [line]
    # A stamp, host or role before the first label belongs to it.
    is_label = not first.strip() or _LABEL.match(first + "[rank0]:") is not None
    return [first + others[0], *others[1:]] if is_label else [first, *others]


def is_telling(text: str) -> bool:
    """Whether a text has something for this reader."""
    return any(mark in text for mark in MARKS) or shows_sign(text)


def shows_sign(text: str) -> bool:
    """Whether any of the signs is in a line or a text."""
    for word in _SIGN_WORDS:
        if word in text:
            return _ANY.search(text) is not None
    return "xid" in text.lower() and _ANY.search(text) is not None


def _may_show_step(line: str) -> bool:
    """Whether `_PROGRESS` can match; outside of ASCII it takes more letters for one than these."""
    small = line.lower()
    return (
        not line.isascii()
        or "step" in small
        or "iter" in small
        or "it/s" in small
        or "s/it" in small
        or "'loss'" in small
    )


class SignReader:
    """Takes the lines of a log one by one."""

    def __init__(self) -> None:
        self.signs: list[Sign] = []
        self.works: list[Work] = []
        self.job_size = 0
        """Ranks of the job, by a launcher's command or what the program printed; 0 where neither is there."""
        self._timeouts: dict[tuple[int, int | None, str], Timeout] = {}
        self._last: dict[int, tuple[str, int]] = {}
        self._went_on = False
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._traceback: set[int | None] = set()
        self._frames: dict[int | None, tuple[int, str, bool]] = {}
        """The last frame of each rank's traceback: line, text, and whether it is the program's own."""
        self._root: int | None = None
        self._in_root = False

    @property
    def timeouts(self) -> list[Timeout]:
        """Each operation that a rank gave up waiting for, once."""
        return list(self._timeouts.values())

    @property
    def last_lines(self) -> list[Sign]:
        """The last line that each rank's program wrote."""
        return [Sign("last_line", redacted(line), number, rank) for rank, (line, number) in sorted(self._last.items())]

    def feed(self, line: str, number: int, rank: int | None) -> None:
        """Take a line; `rank` is what its beginning or its file says."""
        if rank is None and "[" in line and (match := _RANK.search(line)) is not None:
            rank = int(match[1] or match[2] or match[3])
        if "timeout" in line or "Timed out" in line or "ast enqueued" in line:
            self._watchdog(line, rank)
        for of, what in _FINGERPRINT.findall(line) if "is running" in line else ():
            self._add("mismatch", what, number, int(of))
        self._exception(line, number, rank)
        self._launcher(line, number)
        self._frame(line, number, rank)
        if shows_sign(line) and PERIODIC not in line:
            name = next(name for name, pattern in SIGNS.items() if pattern.search(line))
            self._named(name, line, number, rank)
        elif rank not in self._traceback:
            self._ordinary(line, number, rank)

    def _watchdog(self, line: str, rank: int | None) -> None:
        """What torch's watchdog says: the operation that it waited for, and how far the rank had got."""
        if PERIODIC in line:
            return
        group = "" if (found := _GROUP.search(line)) is None else _title(found)
        if rank is None and found is not None:
            rank = int(found["rank"])
        if rank is None:
            return
        if "collective operation timeout" in line and (match := _WAITED.search(line)) is not None:
            seq = None if match["seq"] is None else int(match["seq"])
            key = (rank, seq, match["op"])
            sizes = (None if match[name] is None else int(match[name]) for name in ("into", "out"))
            known = self._timeouts.get(key)
            self._timeouts[key] = Timeout(
                rank, "watchdog", (known.group if known else "") or group, seq, match["op"], *sizes
            )
        elif (match := _GLOO.search(line)) is not None:
            self._timeouts.setdefault((rank, None, match[1]), Timeout(rank, "gloo", "", None, match[1]))
        if (match := _SIGNALLED.search(line)) is not None:
            self._timeouts.setdefault((int(match[1]), None, ""), Timeout(int(match[1]), "signal", "", None, ""))
        if (match := _WORK.search(line)) is not None:
            self.works.append(Work(rank, group, int(match["enqueued"]), int(match["completed"])))
            for key, known in self._timeouts.items():
                if key[0] == rank and group and not known.group and match["waited"] == str(known.seq):
                    self._timeouts[key] = replace(known, group=group)

    def _ordinary(self, line: str, number: int, rank: int | None) -> None:
        """The last line of each rank, the first that shows a step, and how many ranks there are."""
        if not self._went_on and _may_show_step(line) and _PROGRESS.search(line) is not None:
            self._went_on = True
            self._add("progress", line, number, rank)
        if number <= _LAUNCH:
            for mark in _SIZE_MARKS:
                if mark in line:
                    self.job_size = max(self.job_size, _job_size(line))
                    break
        if rank is not None and _OF_TORCH.match(line) is None and _FRAME.match(line) is None:
            self._last[rank] = line.strip()[:LONGEST], number

    def _named(self, name: str, line: str, number: int, rank: int | None) -> None:
        if name == "lagging" and (match := _LAGGING.search(line)) is not None:
            for of in re.findall(r"\d+", match[1]):
                self._add(name, line, number, int(of))
            return
        if (match := re.search(r"\btasks? (\d{1,7}):", line)) is not None:
            rank = int(match[1])
        pid = next((int(found) for found in match.groups() if found), None) if (match := _PID.search(line)) else None
        if pid is not None and "NVRM" in line and rank is not None:
            pid = None  # the driver's number of a process counts outside of its container
        self._add(name, line, number, rank if pid is None else None, pid)

    def _exception(self, line: str, number: int, rank: int | None) -> None:
        if "Traceback (most recent call last)" in line:
            self._traceback.add(rank)
            self._frames.pop(rank, None)
        elif rank in self._traceback and _EXCEPTION.match(line):
            self._traceback.discard(rank)
            if not _CONSEQUENCE.search(line) and not shows_sign(line):
                self._add("crashed", line, number, rank)

    def _frame(self, line: str, number: int, rank: int | None) -> None:
        """A frame of a traceback, the program's own rather than a library's; its code stands on the next line."""
        known = self._frames.get(rank)
        if known is None and 'File "' not in line:
            return
        if (match := _FRAME.match(line)) is not None:
            own = _LIBRARY.search(match["file"]) is None
            if own or known is None or not known[2]:
                name = re.split(r"[/\\]", match["file"])[-1]
                self._frames[rank] = number, f"{name}:{match['line']} in {match['name']}", own
                self._place_earlier(number, rank)
        elif known is not None and number == known[0] + 1 and line[:1].isspace() and line.strip().strip("^~ "):
            self._frames[rank] = known[0], f"{known[1]}, {line.strip()[:80]}", known[2]
            self._place_earlier(number, rank)

    def _place_earlier(self, number: int, rank: int | None) -> None:
        """Some launchers print the error first and its frames below it."""
        if rank in self._traceback or not self.signs or self.signs[-1].rank != rank:
            return
        last = self.signs[-1]
        if last.sign in _PLACED and number - last.line <= 2 + 2 * bool(last.place):
            self.signs[-1] = replace(last, place=self._frames[rank][1])

    def _launcher(self, line: str, number: int) -> None:
        """torchrun's summary: the first rank that failed, and how."""
        if _ROOT in line:
            self._in_root = True
        elif self._in_root and (match := _OF_RANK.match(line)) is not None:
            self._root = int(match[1])
        elif self._in_root and (match := _EXIT.match(line)) is not None:
            self._in_root, code = False, int(match[1])
            if code not in _CONSEQUENT and self._root is not None:
                how = "killed" if code == _KILLED else "crashed"
                self._add(how, f"first to fail: exit code {code}", number, self._root)

    def _add(self, name: str, text: str, number: int, rank: int | None, pid: int | None = None) -> None:
        self._counts[name, rank] += 1
        if self._counts[name, rank] <= MOST:
            frame = self._frames.get(rank) if name in _PLACED else None
            place = frame[1] if frame is not None and number - frame[0] <= _NEAR else ""
            self.signs.append(Sign(name, text.strip()[:LONGEST], number, rank, pid, place))


def _title(match: re.Match[str]) -> str:
    """`119`, or `22 (TENSOR_MODEL_PARALLEL_GROUP)`."""
    return f"{match['group']} ({match['described']})" if match["described"] else match["group"]


def _job_size(line: str) -> int:
    """How many ranks a line says that the job has; 0 where it says nothing of that."""
    if _TORCHRUN.search(line) is not None and (each := _PER_NODE.search(line)) is not None:
        nodes = _NODES.search(line)
        return int(each[1]) * (int(nodes[1]) if nodes else 1)
    match = _SIZES.search(line)
    return 0 if match is None else next(int(number) for number in match.groups() if number)
