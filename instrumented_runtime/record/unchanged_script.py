"""Recording an unmodified script from inside each of its Python processes.

`install` runs before the script. It waits for torch to be imported, and then for a sign that the process
is a rank: the launcher's RANK, or an optimizer's first step. So neither torchrun itself nor data loader
workers record. Light to import: every Python process of the job imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

ENV_OPTIONS = "GPUSCOPE_RECORD"
ENV_RECORDER = "GPUSCOPE_RECORDER_PID"
LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "composer"}


def install() -> None:
    """Arrange for this process to record, if it turns out to be a rank of the job."""
    recorder = os.environ.get(ENV_RECORDER)
    if ENV_OPTIONS not in os.environ or (recorder and recorder != str(os.getpid())):
        return
    from gpuscope.instrumented_runtime.record.capture.nsys_capture import enter_nsys

    enter_nsys()  # does not return if this rank must re-execute under nsys
    sys.meta_path.insert(0, _AfterImport("torch", _attach))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` once module `name` has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute, then = spec.loader.exec_module, self._then

        def execute_then(module: ModuleType) -> None:
            execute(module)
            try:
                then()
            except Exception as error:  # no error of ours may stop the user's job
                print(f"gpuscope: pid {os.getpid()} does not record: {error!r}", file=sys.stderr)

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def _attach() -> None:
    """torch is imported: record from now if this is surely a rank, else from the first optimizer step."""
    import gpuscope.instrumented_runtime.record.session as sessions
    from gpuscope.instrumented_runtime.record.capture.optimizer_steps import on_optimizer_step
    from gpuscope.instrumented_runtime.record.capture_options import options_from

    options = options_from()
    if options.collectives:
        from gpuscope.instrumented_runtime.record.gloo import gloo_trace

        gloo_trace.install()
    if "RANK" in os.environ or (options.whole and not _is_launcher()):
        _open()

    def stepped() -> None:
        if sessions.active_session() is None and not _attempted:
            _open()
        elif _ours is not None:
            _ours.optimizer_stepped()

    on_optimizer_step(stepped)


_ours: Any = None
_attempted = False


def _open() -> None:
    """Open this process's session; a failure is printed and leaves the script alone."""
    global _ours, _attempted
    from gpuscope.errors import GpuscopeError
    from gpuscope.instrumented_runtime.record.ending import close_at_the_end
    from gpuscope.instrumented_runtime.record.run_folder import ENV_FOLDER
    from gpuscope.instrumented_runtime.record.session import gpuscope_session

    _attempted = True
    try:
        _ours = gpuscope_session(os.environ[ENV_FOLDER]).open()
    except Exception as error:
        reason = error if isinstance(error, GpuscopeError | OSError) else repr(error)
        print(f"gpuscope: pid {os.getpid()} does not record: {reason}", file=sys.stderr)
        return
    close_at_the_end(_ours)


def _is_launcher() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = getattr(spec, "name", "")
    return os.path.basename(sys.argv[0]) in LAUNCHERS or module.startswith("torch.distributed.")
