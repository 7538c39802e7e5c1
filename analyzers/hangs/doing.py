"""What a rank's main thread was doing when its stack was dumped, by the functions in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuscope import when_used
from gpuscope.schema.hang_section import Doing
from gpuscope.when_used import dataclass

WAITING = frozenset({"collective", "autograd"})
"""What ranks are in that may wait for others: a backward pass waits for its gradients' all-reduces in C++."""
_FRAME = when_used.pattern(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+|\?\?\?))?\)$")
_START = r"(?:^|[/\\])"


@dataclass(frozen=True)
class Rule:
    """A kind by frames whose file and function match; an empty pattern matches all."""

    kind: Doing
    file: re.Pattern[str]
    name: re.Pattern[str]

    def fits(self, name: str, file: str) -> bool:
        """Whether a frame is one of these."""
        return self.file.search(file) is not None and self.name.search(name) is not None


def _rule(kind: Doing, file: str = "", name: str = "") -> Rule:
    return Rule(kind, when_used.pattern(_START + file if file else ""), when_used.pattern(name))


_COMPILE_FX = r"(?:^|\.)_*(?:compile_fx\w*|fx_codegen_and_compile|codegen_and_compile)$"
_TUNING = r"precompile|autotune_to_one_config|benchmark_all_configs|coordinate_descent|_make_launchers"
_RULES = (
    _rule("debugger", r"(?:pdb|bdb)\.py|(?:ipdb|debugpy|pydevd)/|IPython/(?:core/debugger|terminal/debugger)\.py"),
    _rule("rendezvous", r"torch/distributed/rendezvous\.py"),
    _rule(
        "rendezvous",
        r"torch/distributed/distributed_c10d\.py",
        r"init_process_group|new_group|new_subgroups|split_group|_store_based_barrier|_new_process_group_helper",
    ),
    _rule(
        "collective",
        r"torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)\.py",
        r"^(?!_distributed_excepthook$)",
    ),
    _rule("collective", "", r"^(?:c10d|gloo)::|^nccl[A-Z]\w+"),
    _rule("compiling", r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)\.py"),
    _rule(
        "compiling",
        r"torch/_inductor/(?:graph|scheduler|codecache|async_compile|cpp_builder|select_algorithm)\.py",
        r"^(?!.*__call__$)",
    ),
    _rule("compiling", r"torch/_inductor/compile_fx\.py", _COMPILE_FX),
    _rule("compiling", r"torch/_inductor/runtime/triton_heuristics\.py", _TUNING),
    _rule("compiling", r"triton/(?:compiler/\w+|backends/\w+/compiler|runtime/build)\.py"),
    _rule("compiling", r"triton/runtime/(?:autotuner|jit)\.py", r"_bench|do_bench|benchmark|_do_compile"),
    _rule("compiling", r"torch/utils/(?:cpp_extension|file_baton)\.py"),
    _rule("data_loader", r"(?:torch/utils/data|torchdata|webdataset|nvidia/dali|streaming/base)/"),
    _rule("data_loader", r"datasets/(?:arrow_dataset|iterable_dataset)\.py"),
    _rule("storage", r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/"),
    _rule("storage", r"(?:fsspec|s3fs|gcsfs|botocore)/|shutil\.py"),
    _rule("storage", r"megatron/core/dist_checkpointing/|accelerate/checkpointing\.py"),
    _rule("storage", "", r"(?:^|[._])(?:save|load)_(?:checkpoint|pretrained|state_dict|state)$"),
    _rule("device_wait", "", r"^(?:cu|cuda|hip)\w*Synchronize|_local_scalar_dense|^at::native::item"),
    _rule("device_wait", r"torch/cuda/(?:__init__|streams)\.py", r"synchronize"),
    _rule("autograd", r"torch/autograd/(?:__init__|graph)\.py"),
    _rule("lock", r"threading\.py", r"(?:^|\.)(?:wait|acquire|join|_wait_for_tstate_lock)$"),
    _rule("lock", r"(?:queue|multiprocessing/(?:connection|queues|synchronize|popen_\w+))\.py"),
    _rule("lock", r"concurrent/futures/_base\.py|filelock/"),
)
_PRIORITY = tuple(dict.fromkeys(rule.kind for rule in _RULES))
_READS_DEVICE = when_used.pattern(r"\.(?:item|cpu|tolist|numpy|nonzero|synchronize)\(|\.to\(['\"]cpu")
"""What a line calls that waits for the device: a C function, which has no frame of its own."""
_WAITS = when_used.pattern(r"\.(?:acquire|join)\(\)?")
_LIBRARY = when_used.pattern(
    _START
    + r"(?:torch|triton|multiprocessing|concurrent|(?:site|dist)-packages|lib/python\d[^/]*)/|^<|"
    + _START
    + r"instrumented_runtime/record/|"
    + _START
    + r"(?:threading|queue|subprocess|selectors|[pb]db|cmd|shutil|pickle|contextlib|runpy|socket|ssl)\.py$|"
    r"\.so(?:\.[\d.]+)?$"
)


@dataclass(frozen=True)
class Host:
    """What a main thread was doing, where in the user's code (empty where none is in the stack), and its frames."""

    doing: Doing
    place: str
    frames: tuple[str, ...]


def host(frames: Sequence[str], others_hold_gil: bool = False) -> Host:
    """The first kind, in order of the rules, that a frame shows; the stack as a whole otherwise."""
    parsed = [(match["name"], match["file"], match["line"] or "") for match in map(_parsed, frames) if match]
    kinds = {rule.kind for rule in _RULES for name, file, _ in parsed if rule.fits(name, file)}
    own = next((at for at, (_, file, _) in enumerate(parsed) if not _LIBRARY.search(file)), None)
    place = "" if own is None else f"{_short(parsed[own][1])}:{parsed[own][2]} in {parsed[own][0]}"
    kind: Doing = next((kind for kind in _PRIORITY if kind in kinds), "host_code")
    code = frames[0].partition("\t")[2] if frames and kind == "host_code" else ""
    if _READS_DEVICE.search(code) or _WAITS.search(code):
        kind = "device_wait" if _READS_DEVICE.search(code) else "lock"
    if others_hold_gil and kind in ("host_code", "lock"):
        kind = "gil"
    return Host(kind, place, tuple(frames))


def _parsed(frame: str) -> re.Match[str] | None:
    return _FRAME.match(frame.partition("\t")[0])


def _short(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]
