"""The native core's rows of packets are those of the protobuf runtime, for damaged and foreign packets too; and a file
reads the same in pieces of any size."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from fuzzing.packets import mutated, packets_of
from helpers import needs
from helpers.analysed import problems
from helpers.pftrace import framed, write_pftrace
from helpers.pftrace_job import differing, job

import gpuscope
from gpuscope import native
from gpuscope.sources import stream
from gpuscope.sources.perfetto.packet_rows import BY_MESSAGE, CONCRETE, DIMS, FLAGS, KIND, PacketKind, PacketRows

compiled_here = pytest.mark.skipif(native.core is None, reason=needs.NATIVE_CORE)


def rows(text: bytes) -> tuple[np.ndarray, list[list[int]]]:
    """The rows but for where recorded inputs stand, which only the core says."""
    found = PacketRows(text)
    own = found.rows.copy()
    is_slice = own[:, KIND] <= PacketKind.END
    own[is_slice, DIMS : CONCRETE + 1] = 0
    own[:, FLAGS] &= ~BY_MESSAGE
    return own, sorted(found.waits.tolist())


@compiled_here
def test_the_core_and_protobuf_give_equal_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of mutated traces and of each of their packets cut short: whatever the core takes means the same."""
    content = write_pftrace(tmp_path / "rank0.pftrace", *job(2)).read_bytes()
    random = Random(7)
    texts = [mutated(content, random)[0] for _ in range(200)]
    texts += [framed(packet[:cut]) for packet in packets_of(content) for cut in range(0, len(packet), 7)]
    by_core = [rows(text) for text in texts]
    monkeypatch.setattr(native, "COMPILED", False)
    for (left, left_waits), text in zip(by_core, texts, strict=True):
        right, right_waits = rows(text)
        np.testing.assert_array_equal(left, right)
        assert left_waits == right_waits


@compiled_here
def test_what_torch_writes_is_taken_by_the_core(shared_traces: Path) -> None:
    """None of its events is left to the slow way."""
    content = (shared_traces / "pftrace" / "cpu_only.pftrace").read_bytes()
    found = PacketRows(content).rows
    events = found[np.isin(found[:, KIND], (PacketKind.BEGIN, PacketKind.END, PacketKind.STAGE))]
    assert len(events) > 100
    assert not (events[:, FLAGS] & BY_MESSAGE).any()


@pytest.mark.parametrize("native_core", [pytest.param(True, marks=compiled_here), False])
@pytest.mark.parametrize("size", [97, 4096])
def test_a_file_in_small_pieces_gives_the_same_tables(
    size: int, native_core: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pftrace(tmp_path / "rank1.pftrace", *job())
    whole = gpuscope.open_trace(path)
    monkeypatch.setattr(native, "COMPILED", native_core)
    monkeypatch.setattr(stream, "BLOCK", size)
    pieces = gpuscope.open_trace(path)
    assert differing(whole, pieces) == {}
    assert problems(whole) == problems(pieces)
