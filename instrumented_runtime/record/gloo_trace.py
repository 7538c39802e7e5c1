"""Logs gloo's collectives: gloo reports to a profiler neither group, sequence number, size nor end.

`install()`, before `init_process_group`, wraps each gloo group in a process group of our own. It forwards
every call to the real one and logs it in `collective_log.LOG`: operation, group, sequence number,
elements, dtype, and the times of issue and completion. Its backend name is still gloo. DDP's reducer,
FSDP2, tensor and pipeline parallelism go through it, because torch calls a Python subclass of ProcessGroup
from C++ too.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gpuscope.instrumented_runtime.record import nsys_capture
from gpuscope.instrumented_runtime.record.collective_log import LOG, Collective, Group, failed, first_line
from gpuscope.instrumented_runtime.record.ranges import leave_uncompiled
from gpuscope.native import note_end

# Method of ProcessGroup -> (operation, where its input and its output are among the arguments). Old and
# new names of an operation are both listed; each torch calls those it has.
METHODS: dict[str, tuple[str, int, int]] = {
    "allreduce": ("all_reduce", 0, 0),
    "allreduce_coalesced": ("all_reduce", 0, 0),
    "broadcast": ("broadcast", 0, 0),
    "reduce": ("reduce", 0, 0),
    "allgather": ("all_gather", 1, 0),
    "allgather_coalesced": ("all_gather", 1, 0),
    "_allgather_base": ("all_gather", 1, 0),
    "all_gather_single": ("all_gather", 1, 0),
    "allgather_into_tensor_coalesced": ("all_gather", 1, 0),
    "all_gather_single_coalesced": ("all_gather", 1, 0),
    "reduce_scatter": ("reduce_scatter", 1, 0),
    "_reduce_scatter_base": ("reduce_scatter", 1, 0),
    "reduce_scatter_single": ("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1, 0),
    "gather": ("gather", 1, 0),
    "scatter": ("scatter", 1, 0),
    "alltoall": ("all_to_all", 1, 0),
    "alltoall_base": ("all_to_all", 1, 0),
    "all_to_all_single": ("all_to_all", 1, 0),
    "barrier": ("barrier", -1, -1),
    "send": ("send", 0, 0),
    "recv": ("recv", 0, 0),
    "recv_anysource": ("recv", 0, 0),
}
FORWARDED = (
    "get_group_store",
    "monitored_barrier",
    "abort",
    "set_timeout",
    "_start_coalescing",
    "_end_coalescing",
    "_get_sequence_number_for_group",
    "_set_sequence_number_for_group",
    "_has_hooks",
    "_register_on_completion_hook",
    "_wait_for_pending_works",
    "_enable_collectives_timing",
)


_installed = False


def installed() -> bool:
    """Whether gloo's groups made from now on are logged."""
    return _installed


def install() -> bool:
    """Log the gloo groups made from now on; False if this torch's internals are unknown."""
    global _installed
    from torch.distributed import distributed_c10d as c10d

    needed = ("_new_process_group_helper", "_register_pg_in_world", "ProcessGroup", "ProcessGroupGloo")
    if _installed or not all(hasattr(c10d, name) for name in needed):
        return _installed
    make, register = c10d._new_process_group_helper, c10d._register_pg_in_world
    outer: dict[int, Any] = {}

    def register_and_log(pg: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_gloo(str(kwargs.get("backend_config", ""))):
            inner, pg = pg, _logged_group(pg)
            outer[id(inner)] = pg
        return register(pg, *args, **kwargs)

    def make_logged(*args: Any, **kwargs: Any) -> Any:
        pg, store = make(*args, **kwargs)
        pg = outer.pop(id(pg), pg)
        if hasattr(pg, "gpuscope_group"):
            pg.gpuscope_group.ranks = _members(args, kwargs, pg)
        return pg, store

    c10d._register_pg_in_world, c10d._new_process_group_helper = register_and_log, make_logged
    atexit.register(nsys_capture.rest)  # many scripts end without destroying their groups
    _installed = True
    return True


def _is_gloo(backend_config: str) -> bool:
    """Whether a backend such as «cpu:gloo,cuda:gloo» is gloo on every device; else NCCL is used too."""
    backends = {entry.rpartition(":")[2] for entry in backend_config.lower().split(",")}
    return backends == {"gloo"}


def _members(args: Sequence[Any], kwargs: dict[str, Any], pg: Any) -> tuple[int, ...]:
    """Global ranks of a new group; torch passes an empty list for the world."""
    ranks = args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group")
    return tuple(ranks) if ranks else tuple(range(pg.size()))


def _logged_group(inner: Any) -> Any:
    group = Group(inner.group_name, inner.group_desc, tuple(range(inner.size())))
    LOG.add_group(group)
    outer = _group_class()(inner, group)
    outer._set_group_name(inner.group_name)
    outer._set_group_desc(inner.group_desc)
    return outer


_class: Any = None


def _group_class() -> Any:
    """The subclass of ProcessGroup, defined once torch is imported."""
    global _class
    if _class is not None:
        return _class
    from torch.distributed import ProcessGroup

    def __init__(self: Any, inner: Any, group: Group) -> None:  # noqa: N807
        ProcessGroup.__init__(self, inner.rank(), inner.size())  # type: ignore[call-arg]
        self.inner, self.gpuscope_group = inner, group
        for device in inner._device_types:
            # C++ code that asks a group for its backend gets the real one.
            self._register_backend(device, ProcessGroup.BackendType.GLOO, inner._get_backend(device))
        self._set_default_backend(ProcessGroup.BackendType.GLOO)

    body: dict[str, Any] = {"__init__": __init__}
    body |= {name: _logging(name, *METHODS[name]) for name in METHODS if hasattr(ProcessGroup, name)}
    body |= {name: _forwarding(name) for name in FORWARDED if hasattr(ProcessGroup, name)}
    body["shutdown"] = _shutdown
    for method in body.values():
        leave_uncompiled(method)
    _class = type("LoggedProcessGroup", (ProcessGroup,), body)
    return _class


def _forwarding(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


def _shutdown(self: Any) -> None:
    """What `destroy_process_group` calls first: our callbacks add work to gloo's threads."""
    nsys_capture.rest()
    self.inner.shutdown()


def _logging(name: str, op: str, input_at: int, output_at: int) -> Callable[..., Any]:
    names_peer = name in ("send", "recv")

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = self.gpuscope_group
        peer = group.ranks[args[1]] if names_peer else None
        inputs = args[input_at] if 0 <= input_at < len(args) else ()
        outputs = args[output_at] if 0 <= output_at < len(args) else ()
        entry = LOG.issue(op, group, inputs, outputs, peer)
        try:
            work = getattr(self.inner, name)(*args, **kwargs)
        except Exception as error:
            LOG.complete(entry, first_line(error))
            raise
        return _with_logged_end(work, entry, name)

    return method


_without_future: set[str] = set()
"""Methods whose works have none. Asking costs as much as the rest of a call: it is answered by an error."""


def _with_logged_end(work: Any, entry: Collective, method: str) -> Any:
    """`work`, with its end logged: by its future if it has one, else when it is waited for."""
    if work is None:
        LOG.complete(entry)
        return work
    if entry.seq and method not in _without_future:  # no message
        try:
            note_end(entry, failed, work.get_future())
            return work
        except RuntimeError:
            _without_future.add(method)
    return _work_class()(work, entry)


_Work: Any = None
_held: deque[Any] = deque(maxlen=4096)


class _Waited:
    """In place of a work that has been waited for: it would keep its tensors as long as it is held."""

    def __init__(self, source: int | None) -> None:
        self._source = source

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    is_completed = is_success = wait

    def synchronize(self, *_: Any) -> None:
        pass

    block_current_stream = exception = synchronize

    def source_rank(self) -> int | None:
        return self._source

    _source_rank = source_rank


_WAITED = _Waited(None)


def _work_class() -> Any:
    """A Work that logs the end of its wait: nothing else marks the end of gloo's sends and receives."""
    global _Work
    if _Work is not None:
        return _Work
    from torch.distributed import Work

    class LoggedWork(Work):
        __slots__ = ("entry", "inner")

        def __init__(self, inner: Any, entry: Collective) -> None:
            super().__init__()
            self.inner, self.entry = inner, entry
            # C++ may hold the only reference, and then forgets that this is a Python object.
            _held.append(self)

        def wait(self, *args: Any, **kwargs: Any) -> Any:
            try:
                result = self.inner.wait(*args, **kwargs)
            except Exception as error:
                LOG.complete(self.entry, first_line(error))
                raise
            waited = _WAITED
            if self.entry.op == "recv":
                source = self.inner._source_rank()
                waited = _Waited(source)
                if self.entry.src is None:  # from any source: now known
                    LOG.name_source(self.entry, self.entry.group.ranks[source])
            LOG.complete(self.entry)
            self.inner = waited
            return result

    def forwarding(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(self.inner, name)(*args, **kwargs)

    leave_uncompiled(LoggedWork.wait)
    for name in (
        "is_completed",
        "is_success",
        "exception",
        "result",
        "synchronize",
        "get_future",
        "source_rank",
        "_source_rank",
        "block_current_stream",
        "boxed",
    ):
        if hasattr(Work, name):
            method = forwarding(name)
            leave_uncompiled(method)
            setattr(LoggedWork, name, method)
    _Work = LoggedWork
    return _Work
