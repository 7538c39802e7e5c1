"""What `nvidia-smi topo -m` prints: which path lies between every two devices of a host."""

from __future__ import annotations

import re
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.hardware.topology_matrix import parse_topology
from gpuscope.sources import stream
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, Source
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

_HEADER = when_used.pattern(rb"^\W*(?:\[4m)?GPU0\s", re.MULTILINE)
_ROW = when_used.pattern(rb"^\W*GPU0\s+X\s", re.MULTILINE)


class TopoMatrixSource(Source):
    """Reads `topology`."""

    name = "nvidia-smi-topo"
    files = Files(Role.RECORD, (".txt",), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A matrix whose first row is GPU0's."""
        return path.is_file() and b"\0" not in head and bool(_HEADER.search(head)) and bool(_ROW.search(head))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a matrix. Raises `InputError` where it is not whole."""
        text = b"".join(stream.blocks(path, options.advance)).decode(errors="replace")
        try:
            topology = parse_topology(text)
        except InputError as error:
            raise InputError(f"{path}: {error.message}", hint=error.hint) from error
        pairs = [(a, b, word) for (a, b), word in topology.paths.items() if a < b]
        source = builder.source(path, self.name, "", len(pairs), {})
        code = builder.names.code
        for a, b, word in pairs:
            width = int(word[2:]) if word.startswith("NV") and word[2:].isdecimal() and len(word) < 8 else NA
            ends = {"node": code(topology.nics.get(a, a)), "peer": code(topology.nics.get(b, b))}
            builder.add("topology", 1, {"source": source, **ends, "link": code(word), "width": width})


SOURCE = TopoMatrixSource()
