"""Recording an unmodified script from inside each of its Python processes.

`install` runs before the script and waits for torch to be imported, then for a sign that the process is a rank: it
makes the process group, or an optimizer steps. So neither launchers nor data loader workers record, nor a parent that
spawns the ranks, and nothing is asked of a device before the script has chosen one. Light to import: every Python
process of the job imports it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from gpuscope.instrumented_runtime.record.ranges import AfterImport

ENV_OPTIONS = "GPUSCOPE_RECORD"
ENV_RECORDER = "GPUSCOPE_RECORDER_PID"


def install() -> None:
    """Arrange for this process to record, if it turns out to be a rank of the job."""
    from gpuscope.instrumented_runtime.record.ranges import is_launcher

    chosen = os.environ.get(ENV_OPTIONS, "")
    if '"on_demand": true' in chosen or '"always": true' in chosen:
        from pathlib import Path

        from gpuscope.instrumented_runtime.record.on_demand import listen

        listen(Path(os.environ["GPUSCOPE_RUN_FOLDER"]))  # in launchers too: a signal without a handler ends them
    recorder = os.environ.get(ENV_RECORDER)
    if ENV_OPTIONS not in os.environ or (recorder and recorder != str(os.getpid())) or is_launcher(sys.orig_argv):
        return
    from gpuscope.instrumented_runtime.record.nsys_capture import enter_nsys

    enter_nsys()  # does not return if this rank must re-execute under nsys
    sys.meta_path.insert(0, AfterImport("torch", _attach))


def _attach() -> None:
    """torch is imported: record once this is surely a rank."""
    from gpuscope.instrumented_runtime.record.applied import rank
    from gpuscope.instrumented_runtime.record.capture_options import options_from
    from gpuscope.instrumented_runtime.record.nsys_capture import on_optimizer_step
    from gpuscope.instrumented_runtime.record.ranges import launched_rank

    rank.install()
    options = options_from()
    if options.collectives:
        from gpuscope.instrumented_runtime.record import gloo_trace

        gloo_trace.install()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    if options.whole:
        _open()
    else:
        _before_process_group(_open_if_new)
        if launched_rank() is not None:
            _note_early_failure()

    def stepped() -> None:
        _open_if_new()
        if _ours is not None:
            _ours.optimizer_stepped()

    on_optimizer_step(stepped)


_ours: Any = None
_attempted = False


def _open_if_new() -> None:
    """Open the session, unless the script has one of its own."""
    import gpuscope.instrumented_runtime.record.session as sessions

    if not _attempted and sessions.active_session() is None:
        _open()


def _open() -> None:
    """Open this process's session; a failure is printed and leaves the script alone."""
    global _ours, _attempted
    from gpuscope.errors import GpuscopeError
    from gpuscope.instrumented_runtime.record.run_folder import ENV_FOLDER
    from gpuscope.instrumented_runtime.record.session import close_at_the_end, gpuscope_session

    _attempted = True
    try:
        _ours = gpuscope_session(os.environ[ENV_FOLDER]).open()
    except Exception as error:
        reason = error if isinstance(error, GpuscopeError | OSError) else repr(error)
        print(f"gpuscope: pid {os.getpid()} does not record: {reason}", file=sys.stderr)
        return
    close_at_the_end(_ours)


def _before_process_group(then: Callable[[], object]) -> None:
    """Call `then` when the script makes its process group: before, if the rank is known by then, else after.

    Ranks that a script spawns itself (`mp.spawn`, Lightning) are known by their arguments only.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    import gpuscope.instrumented_runtime.record.session as sessions

    make = c10d.init_process_group
    names = list(inspect.signature(make).parameters)

    @functools.wraps(make)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        with sessions.announced(given.get("rank", -1), given.get("world_size", -1)) as known:
            if known:
                then()
            result = make(*args, **kwargs)
        then()
        return result

    c10d.init_process_group = dist.init_process_group = init_process_group


def _note_early_failure() -> None:
    """A rank that a launcher started and that fails before it is known to train is in the manifest all the same."""
    before = sys.excepthook

    def on_exception(kind: Any, error: BaseException, trace: Any) -> None:
        before(kind, error, trace)
        from gpuscope.instrumented_runtime.record.session import note_failure

        if not _attempted:
            note_failure(error)

    sys.excepthook = on_exception


def _forked() -> None:
    """In a forked child: what its parent records is the parent's alone."""
    global _ours, _attempted
    import gpuscope.instrumented_runtime.record.session as sessions

    if sessions.disown():
        _ours, _attempted = None, True
