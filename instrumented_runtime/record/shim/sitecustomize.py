"""Python runs this at start-up where `gpuscope record` put its folder on PYTHONPATH.

It precedes any other `sitecustomize`, so it first runs the one it hides.
"""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_others = [path for path in sys.path if os.path.abspath(path) != _here]
_hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(importlib.util.module_from_spec(_hidden))

try:
    from gpuscope.instrumented_runtime.record.unchanged_script import install
except ImportError as error:
    if {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_NUM_TASKS"} & set(os.environ):
        print(f"gpuscope: {sys.executable} can't record: {error}", file=sys.stderr)
else:
    install()
