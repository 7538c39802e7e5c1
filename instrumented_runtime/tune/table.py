"""`gpuscope.tune`: what was tried, as a DataFrame."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from gpuscope.instrumented_runtime.tune.budget import DEFAULT
from gpuscope.instrumented_runtime.tune.running import STEPS, Asked, default_folder
from gpuscope.instrumented_runtime.tune.running import tune as tuned
from gpuscope.schema.tune_document import TriedChange

if TYPE_CHECKING:
    import pandas as pd


def tune(
    command: str | Sequence[str],
    *,
    budget: str | int = DEFAULT,
    out: str | os.PathLike[str] | None = None,
    steps: int = STEPS,
    allow: Sequence[str] = (),
    out_arg: str = "",
    nccl: bool = False,
) -> pd.DataFrame:
    """Follow the advice on a training command, one suggestion after the other, and keep what gains: `gpuscope tune`.

    `command` is words, or text as a shell splits it. `budget` is a number of runs or a time (`"20m"`), `out` a new
    folder for the recordings, `steps` how many are timed in each run, `allow` the groups of changes that may alter
    training, `out_arg` the script's argument that says where it writes; `nccl` searches NCCL's own settings, too.

    Returns a row per change that was tried; `attrs` has the rest of the document of `gpuscope tune --json`. Raises
    `UsageError` and `InputError` for what can't be tuned, `GpuscopeError` where the command as it stands fails.
    """
    import pandas as pd

    words = shlex.split(command) if isinstance(command, str) else list(command)
    folder = Path(out) if out is not None else default_folder()
    found = tuned(Asked(words, folder, str(budget), steps, allow, out_arg, nccl))
    table = pd.DataFrame(found["changes"], columns=list(get_type_hints(TriedChange)))
    table.attrs.update({key: value for key, value in found.items() if key != "changes"})
    return table
