"""The scripts, and what is known of each before anything is measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Case:
    """A script, how it is started, and where its slowness can be removed."""

    name: str
    removable: Literal["settings", "by hand", "nothing"]
    codes: tuple[str, ...] = ()
    """Suggestions that remove it."""
    processes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    """Groups of changes that may alter training, which its user knows to be harmless here."""

    def command(self, *, fixed: bool = False) -> list[str]:
        """As a user starts it."""
        launcher = [sys.executable]
        if self.processes > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        return [*launcher, str(SCRIPTS / f"{self.name}.py"), *(["--fixed"] if fixed else [])]


CASES = (
    Case("loader", "settings", ("loader_workers",)),
    Case("decode", "settings", ("loader_workers",)),
    Case("collate", "settings", ("loader_workers",)),
    Case("buckets", "settings", ("bucket_size",), 2),
    Case("two_faults", "settings", ("loader_workers", "bucket_size"), 2),
    Case("buffers", "settings", ("broadcast_buffers",), 2, allow=("buffers",)),
    Case("resharded", "settings", ("fsdp_keep_parameters",), 2),
    Case("garbage", "settings", ("manual_gc",)),
    Case("optimizer", "settings", ("fused_optimizer",)),
    Case("threads", "settings", ("cpu_threads",), 2, environment={"OMP_NUM_THREADS": "16"}),
    Case("histograms", "by hand", ("host_work_named", "host_work_aside", "host_other")),
    Case("pageable", "nothing"),
    Case("printing", "nothing"),
    Case("unused", "nothing", processes=2),
    Case("healthy_loader", "nothing"),
    Case("healthy_ddp", "nothing", processes=2),
    Case("healthy_fsdp", "nothing", processes=2),
)
