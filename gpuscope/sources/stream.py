"""The bytes of a text file, block by block: gunzipped, in UTF-8, never the whole document at once.

First touch of new memory is the slowest thing when reading gigabytes, so blocks stay small: what one decodes
to fits the processor's cache.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from gpuscope import when_used
from gpuscope.errors import InputError

try:
    fast_zlib: Any = import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform: the standard library's, about three times slower
    fast_zlib = zlib

BLOCK = 2 << 20
GZIP_MAGIC = b"\x1f\x8b"
BOMB_RATIO = 250
"""Traces gunzip to 10–60 times their size; deflate's limit is 1032."""
BOMB_FLOOR = 1 << 30


class TruncatedError(Exception):
    """The file ends in the middle of its compressed data."""


def blocks(path: Path, advance: Callable[[int], None] | None = None, size: int = 0) -> Iterator[bytes]:
    """UTF-8 blocks of about `size` bytes, by default of `BLOCK`. `advance` gets the number of compressed bytes read.

    Raises `TruncatedError` after the last whole block of a gzip file that was cut off, and `InputError` where
    the file can't be read or gunzips to absurdly much.
    """
    raw = (_gunzipped if _head(path, 2) == GZIP_MAGIC else _plain)(path, advance, size or BLOCK)
    first = next(raw, b"")
    for bom, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if first.startswith(bom):
            yield from _recoded(first[2:], raw, encoding)
            return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from raw


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first `size` bytes of the text, for recognising formats; as many as there are when damaged."""
    found = b""
    with suppress(TruncatedError, InputError):
        for block in blocks(path, size=size):
            found += block
            if len(found) >= size:
                break
    return found[:size]


def _head(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def _plain(path: Path, advance: Callable[[int], None] | None, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(size):
                if advance:
                    advance(len(block))
                yield block
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def _gunzipped(path: Path, advance: Callable[[int], None] | None, most: int) -> Iterator[bytes]:
    size = path.stat().st_size
    done = reported = 0
    with path.open("rb") as compressed:
        for block in _inflate(compressed, path, most):
            done += len(block)
            if done > BOMB_FLOOR and done > BOMB_RATIO * size:
                raise InputError(
                    f"{path}: gunzips to more than {BOMB_RATIO} times its size; not a trace",
                    hint="if it really is one, gunzip it yourself and pass the result",
                )
            if advance:
                position = compressed.tell()
                advance(position - reported)
                reported = position
            yield block


def _inflate(compressed: IO[bytes], path: Path, most: int) -> Iterator[bytes]:
    """Members of a gzip file, one after another, in pieces of at most `most` bytes."""
    pending = b""
    try:
        while True:
            inflator = fast_zlib.decompressobj(wbits=31)
            while not inflator.eof:
                pending = pending or compressed.read(1 << 18)
                if not pending:
                    raise TruncatedError(f"{path}: the gzip data ends early")
                piece: bytes = inflator.decompress(pending, most)
                pending = inflator.unconsumed_tail
                if piece:
                    yield piece
            pending = inflator.unused_data or compressed.read(1 << 18)
            if not pending.strip(b"\0"):  # done, or padded with zeros to a block of tape
                return
    except (zlib.error, fast_zlib.error, OSError) as error:
        raise TruncatedError(f"{path}: the gzip data is damaged: {error}") from error


def _recoded(first: bytes, rest: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode()
    for block in rest:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


# Whose trace a file is: torch.profiler's or another recorder's, and what is no trace at all but often taken for one.
#
# Definitions: «Whose trace is it». Many recorders write Chrome's trace format; torch.profiler has categories of its
# own.

KINETO_ALONE = frozenset(
    {
        "cpu_op",
        "user_annotation",
        "gpu_user_annotation",
        "python_function",
        "cpu_instant_event",
        "ac2g",
        "fwdbwd",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "cuda_event",
        "cuda_profiler_range",
        "gpu_memcpy",
        "gpu_memset",
        "concurrent_kernel",
        "external_correlation",
        "gpu_pm_counter",
        "graph_event_node",
        "graph_host_node",
        "mtia_runtime",
        "mtia_ccp_events",
        "mtia_insight",
        "xpu_runtime",
        "xpu_driver",
        "glow_runtime",
        "hpu_op",
        "privateuse1_runtime",
        "privateuse1_driver",
    }
)
"""Categories that no recorder but libkineto (and what builds on it) writes."""
KINETO_TOO = frozenset({"kernel", "operator", "runtime", "driver", "memcpy", "memset", "overhead", "trace"})
"""Categories of libkineto, most of them of 2020 and 2021, that other recorders use as well."""

_CATEGORY = when_used.pattern(rb'"cat"\s*:\s*"([^"\\]{1,64})')
_KINETO_MARK = when_used.pattern(rb'"[Ee]xternal id"\s*:|"PyTorch Profiler \(')
"""An argument of libkineto's events, and the event that frames its recording."""
_PROCESS = when_used.pattern(rb'"process_name"')
_NAME_ARGUMENT = when_used.pattern(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"([^"\\]{1,200})"')
_AROUND = 300
"""Bytes before and after `process_name` within which the name itself stands, whatever the order of the keys."""
_MOST_PROCESSES = 200
_CATEGORIES_KEPT = 200
_MOST, _MOST_SHARED = 1 << 30, 32 << 20
"""Bytes of text that are searched at most for a category of libkineto's own: without any, and where categories that
others use too were found."""
_NSYS = (
    "on NVIDIA GPUs record the job with Nsight Systems (nsys profile -t cuda,nvtx,osrt …) and analyse its report: "
    "gpuscope reads that of any framework"
)
_TORCH = (
    "of a PyTorch job record a trace with torch.profiler (or by: gpuscope record -- python train.py), of any other on "
    "NVIDIA GPUs one with Nsight Systems (nsys profile)"
)


@dataclass(frozen=True)
class Recorder:
    """Who else writes Chrome traces, how that is seen, and what to do instead."""

    name: str
    hint: str
    categories: str = r"(?!)"
    """What a whole category matches; of several in one, as Chromium writes them, any."""
    processes: str = r"(?!)"
    """What is found in the name of a process."""
    text: bytes = rb"(?!)"
    """What is found in the file."""
    files: str = r"(?!)"
    """What the file's name holds; asked where nothing else tells."""


RECORDERS = (
    Recorder("ONNX Runtime", _NSYS, categories=r"Session|Node"),
    Recorder(
        "PaddlePaddle's profiler",
        _NSYS,
        categories=r"ProfileStep|OperatorInner|DygraphKernelLaunch|PythonUserDefined|UserDefined",
        files=r"paddle_trace",
    ),
    Recorder(
        "MindSpore",
        "gpuscope reads Ascend's trace_view.json as torch_npu writes it; " + _TORCH,
        processes=r"(?i)mindspore|\b(ai ?core|ai ?cpu|host ?cpu|communication) op\b",
        categories=r"(?i)mindspore.*",
        text=rb"(?i)\"mindspore[^\"]{0,40}\"\s*:",
        files=r"(?i)mindspore|timeline_display_",
    ),
    Recorder("TensorFlow's timeline", _NSYS, processes=r"/job:\w+"),
    Recorder("JAX or TensorFlow (XProf)", _NSYS, processes=r"^/(host|device):|^#Chip|^Task Environment"),
    Recorder(
        "Composer's profiler",
        "name the traces of its TorchProfiler instead (torch_traces/); " + _TORCH,
        processes=r"^Rank \d+ training loop process",
        text=rb'"name"\s*:\s*"clock_sync_(timestamp_us|error_bound)"',
    ),
    Recorder(
        "Ray's timeline",
        _TORCH,
        categories=r"task::?.*|worker_idle|ray::.*|submit_task|get_objects|wait_for_.*",
        text=rb'"tid"\s*:\s*"worker:',
    ),
    Recorder(
        "torch.compile's events (tlparse's chromium_events.json)",
        "analyse the log that it was made from (TORCH_TRACE=folder), or a trace of torch.profiler",
        categories=r"dynamo_timed|dynamo|inductor_.*",
    ),
    Recorder(
        "the legacy autograd profiler",
        "record with torch.profiler, and export by export_chrome_trace",
        text=rb'"pid"\s*:\s*"(CPU|CUDA) functions"',
    ),
    Recorder("viztracer", _TORCH, categories=r"FEE", text=rb'"viztracer_metadata"\s*:'),
    Recorder(
        "an NCCL profiler plugin",
        "analyse the job's own traces; of NCCL's plugins gpuscope reads JSON lines",
        categories=r"GROUP_API|COLL_API|P2P_API|KERNEL_LAUNCH|COLL|P2P|PROXY|NET",
    ),
    Recorder(
        "rocprof",
        "record a trace with torch.profiler, which runs on ROCm too",
        processes=r"^CPU (HIP|HSA) API|^(HIP|HSA)_API|rocprof",
    ),
    Recorder(
        "an eBPF tracer",
        _TORCH,
        categories=r"(?i).*\b(e?bpf|bpftrace|[uk](ret)?probes?|usdt)\b.*",
        processes=r"(?i)\b(e?bpf|bpftrace|[uk](ret)?probes?)\b",
        text=rb'(?i)"[\w.-]{0,40}(e?bpf|bpftrace)[\w. -]{0,80}"',
        files=r"(?i)e?bpf",
    ),
    Recorder(
        "a browser (Chromium's tracing)",
        _TORCH,
        categories=r"__metadata|devtools\.\w+|disabled-by-default-.*|v8(\..*)?|blink(\..*)?|toplevel(\..*)?|"
        r"cc|viz|loading|navigation|netlog|renderer(\..*)?|benchmark|rail|latencyInfo|ipc(\..*)?",
        processes=r"^(Cr)?(Browser|Renderer|GPU Process)$",
        text=rb'"product-version"\s*:\s*"\w*Chrome',
    ),
    Recorder("the kernel's tracer (ftrace, perf)", _TORCH, categories=r"(?i)sched|irq|syscalls?|ftrace|perf"),
)
"""In this order: the first whose marks a file has. Own marks stand before those that several recorders might use."""


@dataclass
class Marks:
    """What a file shows of its recorder."""

    path: Path
    categories: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    by_text: set[str] = field(default_factory=set)
    """The recorders whose marks stand in the text."""
    kineto_alone: bool = False
    kineto_too: bool = False

    def take(self, text: bytes) -> None:
        """Look at some text of the file."""
        found = {name.decode("utf-8", "replace") for name in set(_CATEGORY.findall(text))}
        lowered = {name.lower() for name in found}
        self.kineto_alone |= not lowered.isdisjoint(KINETO_ALONE) or _KINETO_MARK.search(text) is not None
        self.kineto_too |= not lowered.isdisjoint(KINETO_TOO)
        if self.kineto_alone:
            return
        if len(self.categories) < _CATEGORIES_KEPT:
            self.categories |= found
        for match in _PROCESS.finditer(text):
            if len(self.processes) >= _MOST_PROCESSES:
                break
            at = match.start()
            names = _NAME_ARGUMENT.finditer(text, max(0, at - _AROUND), at + _AROUND)
            if (nearest := min(names, key=lambda name: abs(name.start() - at), default=None)) is not None:
                self.processes.add(nearest[1].decode("utf-8", "replace"))
        self.by_text |= {recorder.name for recorder in RECORDERS if re.search(recorder.text, text)}

    @property
    def recorder(self) -> Recorder | None:
        """Who wrote it, where one of `RECORDERS` did."""
        parts = {part for category in self.categories for part in (category, *category.split(","))}
        for recorder in RECORDERS:
            by_category = any(re.fullmatch(recorder.categories, part) for part in parts)
            by_process = any(re.search(recorder.processes, name) for name in self.processes)
            if by_category or by_process or recorder.name in self.by_text:
                return recorder
        return None

    @property
    def kineto(self) -> bool:
        """Whether some event has a category of libkineto's, and no other recorder's mark speaks against it."""
        return self.kineto_alone or (self.kineto_too and self.recorder is None)

    @property
    def of_another(self) -> bool:
        """Whether it is known to be another recorder's: nothing is known of a file without categories."""
        return not self.kineto and (self.recorder is not None or bool(self.categories))

    def refusal(self) -> InputError:
        """Why the file is not read, and what to do instead."""
        recorder = self.recorder or next((one for one in RECORDERS if re.search(one.files, self.path.name)), None)
        if recorder is not None:
            return InputError(
                f"{self.path}: is a trace of {recorder.name}, not of torch.profiler; gpuscope does not read those",
                hint=recorder.hint,
            )
        shown = sorted(self.categories)[:4]
        seen = f" (its categories: {', '.join(shown)}{' …' if len(self.categories) > len(shown) else ''})"
        return InputError(
            f"{self.path}: is a Chrome trace of another recorder, not of torch.profiler: no event has a category that "
            f"torch.profiler writes{seen if shown else ''}",
            hint=_TORCH,
        )


def marks_of(path: Path) -> Marks:
    """What a Chrome trace shows of its recorder, read only as far as needed."""
    status = path.stat()
    return _marks(path, status.st_size, status.st_mtime_ns)


@lru_cache(1 << 12)
def _marks(path: Path, *_version: int) -> Marks:
    found, kept, read = Marks(path), b"", 0
    try:
        for block in blocks(path):
            found.take(kept + block)
            read += len(block)
            shared = found.kineto_too and found.recorder is None
            if found.kineto_alone or read > (_MOST_SHARED if shared else _MOST):
                break
            kept = block[-2 * _AROUND :]
    except (TruncatedError, InputError):
        pass  # reading it will say so
    return found


_SPEEDSCOPE = b"speedscope.app/file-format-schema"
_PLACE = when_used.pattern(rb"^(version https://git-lfs\.github\.com/spec|/annex/objects/|\.\./.*\.git/annex/)")
_PAGE = when_used.pattern(rb"^\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_ERROR_PAGE = when_used.pattern(rb"^\s*(<\?xml[^>]*>\s*)?<Error>")
_OWN_PAGE = b"gpuscope"
_XPLANE = when_used.pattern(rb"^\x0a.{1,5}?(\x08.{1,9}?)?\x12.(/host:|/device:|Task Environment|#Chip)", re.DOTALL)
_TAIL = 4096


def placeholder(path: Path, head: bytes) -> InputError | None:
    """A file that stands for a trace that is elsewhere: a pointer, or a page of the server that was asked for it."""
    if _PLACE.search(head):
        program = "git lfs pull" if head.startswith(b"version") else "git annex get"
        return InputError(
            f"{path}: is a pointer of {'Git LFS' if 'lfs' in program else 'git-annex'}, not the file itself",
            hint=f"fetch the content first: {program}{' --include' if 'lfs' in program else ''} {path.name}",
        )
    if _PAGE.search(head) and _OWN_PAGE not in head[:_TAIL]:
        return InputError(
            f"{path}: is an HTML page, not a trace",
            hint="it was saved in place of the trace: download the file itself (on GitHub or Hugging Face by «Raw» or "
            "«Download», with curl -fL, signed in where that is needed)",
        )
    if _ERROR_PAGE.search(head):
        return InputError(
            f"{path}: is an error message of a storage service, not a trace",
            hint="its text says why the download was refused; download the file again",
        )
    return None


def other_kind(path: Path, head: bytes) -> InputError | None:
    """What else is often handed in place of a trace, by name; None where it is none of that."""
    if (refused := placeholder(path, head)) is not None:
        return refused
    if _PAGE.search(head):
        return InputError(
            f"{path}: is a report of gpuscope, not a trace",
            hint="open it in a browser; the traces that it was made from can be analysed",
        )
    if path.name.endswith(".xplane.pb") or is_xplane(head):
        return InputError(
            f"{path}: is a profile of JAX or TensorFlow (XProf's xplane.pb); gpuscope does not read those", hint=_NSYS
        )
    text = head.lstrip()
    if text.startswith(b"{") and (_SPEEDSCOPE in head or _SPEEDSCOPE in _tail(path)):
        return InputError(
            f"{path}: is a speedscope profile (py-spy, austin, pyinstrument …): samples of stacks, without what ran on "
            "the GPU; gpuscope does not read those",
            hint=f"open it at speedscope.app. {_TORCH[0].upper()}{_TORCH[1:]}",
        )
    if text.startswith((b"{", b"[")) and (found := marks_of(path)).of_another:
        return found.refusal()
    return None


def is_xplane(head: bytes) -> bool:
    """Whether a file begins as XProf's own format does; Perfetto's begins alike."""
    return _XPLANE.search(head) is not None


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read()
