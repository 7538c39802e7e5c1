"""Writes when each torch optimizer of a process is asked to step: a line of nanoseconds per call, a file per process.

Python runs it at start-up where its folder is on PYTHONPATH. It shares nothing with gpuscope.
"""

import importlib.machinery
import os
import sys
import time

FOLDER = os.environ.get("STEP_TIMES")
MODULE = "torch.optim.optimizer"


class _AfterImport:
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_then_hook(module):
            execute(module)
            module.register_optimizer_step_pre_hook(_stamp)

        spec.loader.exec_module = execute_then_hook
        return spec


_open: dict[int, int] = {}


def _stamp(*_: object) -> None:
    now, process = time.monotonic_ns(), os.getpid()
    if process not in _open:  # forked or spawned ranks each have their own file
        path = os.path.join(FOLDER, f"{process}.txt")
        _open[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_open[process], b"%d\n" % now)


if FOLDER:
    sys.meta_path.insert(0, _AfterImport())
