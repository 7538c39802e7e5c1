"""What errors in logs call for: figures on memory, errors of programs and of hardware, networks, RAS's text."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.nccl_logs import communicator, said

import gpuscope
from gpuscope.analyzers.hangs import timed_out
from gpuscope.cli import cli
from gpuscope.schema.memory_section import Hang


def write(folder: Path, *lines: str, name: str = "job.log") -> None:
    (folder / name).write_text("\n".join(lines) + "\n")


def hang(folder: Path) -> Hang:
    return gpuscope.analyze(folder).report["hang"]


# -- memory

NEW = (
    "torch.OutOfMemoryError: {0} out of memory. Tried to allocate {1}. GPU 2 has a total capacity of 79.10 GiB of "
    "which 640.00 MiB is free. {2}Including non-PyTorch memory, this process has 78.40 GiB memory in use. Of the "
    "allocated memory {3} is allocated by PyTorch, and {4} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting {5}=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {0} (GPU 0; 23.55 GiB total capacity; {1} already allocated; "
    "4.69 MiB free; {2} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb"
)
OTHERS = "Process 644963 has 5.59 MiB memory in use. Process 3053273 has 29.04 GiB memory in use. "


@pytest.mark.parametrize(
    ("text", "first", "figure"),
    [
        (
            NEW.format("CUDA", "2.00 GiB", "", "60.00 GiB", "9.50 GiB", "PYTORCH_CUDA_ALLOC_CONF"),
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "9.50 GiB",
        ),
        (
            NEW.format("HIP", "2.00 GiB", "", "60.00 GiB", "9.50 GiB", "PYTORCH_HIP_ALLOC_CONF"),
            "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
            "9.50 GiB",
        ),
        (
            NEW.format("CUDA", "512.00 MiB", "", "70.00 GiB", "2.25 GiB", "PYTORCH_ALLOC_CONF"),
            "PYTORCH_ALLOC_CONF=expandable_segments:True",
            "2.25 GiB",
        ),
        (OLD.format("1.00 GiB", "18.00 GiB", "22.00 GiB"), "expandable_segments:True (from torch 2.1", "4.00 GiB"),
        (OLD.format("96.00 MiB", "22.52 GiB", "22.60 GiB"), "a real shortage", "96.00 MiB"),
        (NEW.format("CUDA", "20.00 MiB", "", "77.00 GiB", "10.27 MiB", "X"), "a real shortage", "77.00 GiB"),
        # Enough for this request, and no more than the rounding of blocks.
        (NEW.format("CUDA", "20.00 MiB", "", "77.00 GiB", "150.00 MiB", "X"), "a real shortage", "150.00 MiB"),
        (NEW.format("CUDA", "3.00 GiB", "", "74.00 GiB", "2.90 GiB", "X"), "a real shortage", "2.90 GiB"),
        (
            NEW.format("CUDA", "3725.29 GiB", "", "3.00 GiB", "20.00 MiB", "X"),
            "a real shortage",
            "more than the device has",
        ),
        (
            NEW.format("CUDA", "2.00 GiB", OTHERS, "40.00 GiB", "1.00 GiB", "X"),
            "nvidia-smi",
            "other processes hold 29.05 GiB",
        ),
    ],
)
def test_the_figures_of_a_lack_of_memory_say_what_comes_first(
    tmp_path: Path, text: str, first: str, figure: str
) -> None:
    write(tmp_path, f"[rank2]: {text}", "[rank0]: step 4")
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["reason"]) == (2, "out_of_memory")
    assert first in (cause["remedy"] or "")
    assert figure in cause["why"]
    assert ("expandable" in (cause["remedy"] or "")) == first.startswith(("PYTORCH", "expandable"))


def test_a_message_without_figures_has_none() -> None:
    assert timed_out.read("torch.OutOfMemoryError: CUDA out of memory.") is None


def test_of_a_process_without_a_rank_it_is_told_too(tmp_path: Path) -> None:
    text = NEW.format("CUDA", "2.00 GiB", "", "60.00 GiB", "9.50 GiB", "PYTORCH_CUDA_ALLOC_CONF")
    write(tmp_path, "Traceback (most recent call last):", '  File "/app/t.py", line 3, in f', text)
    shown = CliRunner().invoke(cli, ["hang", str(tmp_path)]).output
    assert shown.startswith("A process failed")
    assert "expandable_segments:True" in shown


# -- programs and hardware


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: invalid configuration argument",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: HIP error: an illegal memory access was encountered",
        "../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [7,0,0], thread: [2,0,0] Assertion "
        "`index out of bounds` failed.",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=700, name=python, Ch 00000010, intr 10000000. MMU Fault",
        "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception",
    ],
)
def test_an_error_of_a_program_is_no_broken_gpu(tmp_path: Path, text: str) -> None:
    frames = ["Traceback (most recent call last):", '  File "/x/site-packages/torch/_tensor.py", line 581, in backward']
    frames.insert(1, '  File "/app/model.py", line 88, in step')
    frames.insert(2, "    loss.backward()")
    write(tmp_path, *frames, text, name="rank3.log")
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["reason"], cause["place"]) == (
        3,
        "program_error",
        "model.py:88 in step, loss.backward()",
    )
    assert "compute-sanitizer" in (cause["remedy"] or "")
    assert "take the GPU out" not in CliRunner().invoke(cli, ["hang", str(tmp_path)]).output


@pytest.mark.parametrize(
    "text",
    [
        *(f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid='<unknown>'" for xid in (48, 63, 64, 74, 79, 94, 95)),
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "kernel: NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.",
        "XID 79 error detected on GPU 3",
    ],
)
def test_hardware(tmp_path: Path, text: str) -> None:
    write(tmp_path, text, name="rank3.log")
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["reason"]) == (3, "gpu_error")
    assert "take the GPU out" in (cause["remedy"] or "")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:3b:00): 119, pid=7, Timeout waiting for RPC from GSP",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
    ],
)
def test_neither(tmp_path: Path, text: str) -> None:
    write(tmp_path, text, name="rank3.log")
    (cause,) = hang(tmp_path)["first_cause"]
    assert cause["reason"] == "driver_error"


def test_what_befalls_a_rank_after_its_time_out_is_no_cause(tmp_path: Path) -> None:
    waits = (
        "[rank{0}]:[E711 09:12:44.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds "
        "before timing out."
    )
    after = "[rank{0}]: RuntimeError: CUDA error: unspecified launch failure"
    lines = [line.format(rank) for rank in (0, 1, 3) for line in (waits, after)]
    write(tmp_path, "world_size: 4", *lines)
    assert [cause["rank"] for cause in hang(tmp_path)["first_cause"]] == [2]


# -- network


def no_answer(
    rank: int, address: str, host: str, *, form: str = "error 12, opcode 0, len 0, vendor err 129 (Send)"
) -> str:
    return (
        f"{host}:{100 + rank}:{900 + rank} [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        f"{address}<40001> with {form}"
    )


def fabric(layer: str, **variables: str) -> list[str]:
    """Two hosts of two ranks, whose ring crosses from 1 to 2 and from 3 to 0."""
    lines = [
        said(f"Bootstrap : Using eth0:10.0.0.{1 + rank // 2}<0>", host=f"n{rank // 2}", pid=100 + rank)
        for rank in range(4)
    ]
    lines += [said(f"NET/IB : Using [0]mlx5_0:1/{layer} [RO]; OOB eth0:10.0.0.1<0>", host="n0", pid=100)]
    lines += [said(f"{name} set by environment to {value}.", host="n0", pid=100) for name, value in variables.items()]
    lines += communicator(4, 2)
    for sender, receiver in ((1, 2), (3, 0)):
        text = f"Channel 00/0 : {sender}[1] -> {receiver}[0] [send] via NET/IB/0"
        lines.append(said(text, host=f"n{sender // 2}", pid=100 + sender, device=1))
    return lines


BOTH = (no_answer(1, "10.0.0.2", "n0"), no_answer(3, "10.0.0.1", "n1", form="status=IBV_WC_RETRY_EXC_ERR(12) opcode=0"))


def test_roce_that_never_worked(tmp_path: Path) -> None:
    write(tmp_path, *fabric("RoCE"), *BOTH)
    first, second = hang(tmp_path)["first_cause"]
    assert (first["rank"], first["kind"], second["rank"]) == (1, "network", 3)
    assert "on n0 got no answer from 10.0.0.2 (n1, rank 2), and nothing had run before" in first["why"]
    assert "10.0.0.1 (n0, rank 0)" in second["why"]
    assert "NCCL_IB_GID_INDEX:" in (first["remedy"] or "")
    assert "ibstat" not in (first["remedy"] or "")


def test_roce_with_the_index_set_already(tmp_path: Path) -> None:
    write(tmp_path, *fabric("RoCE", NCCL_IB_GID_INDEX="3"), BOTH[0])
    assert "NCCL_IB_GID_INDEX=3 is set" in (hang(tmp_path)["first_cause"][0]["remedy"] or "")


def test_infiniband_that_never_worked(tmp_path: Path) -> None:
    write(tmp_path, *fabric("IB"), *BOTH)
    assert "subnet manager" in (hang(tmp_path)["first_cause"][0]["remedy"] or "")


@pytest.mark.parametrize(
    "progress", ["step 1200 loss 2.31", " 13%|#    | 13/100 [05:56<1:00, 1.47s/it]", "iter: [40] x"]
)
def test_a_link_that_breaks_later_is_another_matter(tmp_path: Path, progress: str) -> None:
    write(tmp_path, *fabric("RoCE"), progress, *BOTH)
    (first, _) = hang(tmp_path)["first_cause"]
    assert "cables" in (first["remedy"] or "")
    assert "GID" not in (first["remedy"] or "")
    assert "nothing had run" not in first["why"]


def test_without_nccls_own_ranks_the_host_is_named(tmp_path: Path) -> None:
    """NCCL_DEBUG=WARN: the log has no other line of NCCL."""
    write(tmp_path, *BOTH)
    shown = " ".join(CliRunner().invoke(cli, ["hang", str(tmp_path)]).output.split())
    assert "on n0 got no answer from 10.0.0.2" in shown
    assert "NCCL_IB_GID_INDEX" in shown


# -- RAS

RAS = """NCCL version 2.28.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          8            1         16       16

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING  {0}

Errors
======

Warnings
========

{1}"""


def ras(folder: Path, errors: str, body: str) -> Hang:
    write(folder, RAS.format(errors, body), name="ras.out")
    done = CliRunner().invoke(cli, ["hang", str(folder)])
    assert done.exit_code == 0, done.output
    return hang(folder)


def counts(operation: str, *lines: str) -> str:
    title = f"#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different {operation} operation counts\n"
    return title + "".join(f"  {line}\n" for line in lines) + "\n"


def test_ras_that_names_those_ahead(tmp_path: Path) -> None:
    found = ras(
        tmp_path,
        "MISMATCH",
        counts(
            "AllReduce",
            "15 ranks have launched up to operation 99",
            "Rank 4 has launched up to operation 100 -- GPU 4 managed by process 7 on node 10.0.0.1",
        ),
    )
    assert [cause["rank"] for cause in found["first_cause"]] == [rank for rank in range(16) if rank != 4]
    assert "rank 4 100" in found["first_cause"][0]["why"]
    assert not any(cause["certain"] for cause in found["first_cause"])


def test_ras_that_names_those_behind_of_the_second_operation(tmp_path: Path) -> None:
    broadcast = counts("Broadcast", "16 ranks have launched up to operation 3")
    gather = counts(
        "AllGather",
        "14 ranks have launched up to operation 8",
        "2 ranks have launched up to operation 7",
        "Rank 2 -- GPU 2 managed by process 7 on node 10.0.0.1",
        "Rank 9 -- GPU 1 managed by process 8 on node 10.0.0.2",
    ).partition("\n")[2]
    found = ras(tmp_path, "MISMATCH", broadcast + gather)
    assert [cause["rank"] for cause in found["first_cause"]] == [2, 9]


def test_ras_that_finds_nothing(tmp_path: Path) -> None:
    write(tmp_path, RAS.format("OK", ""), name="ras.out")
    done = CliRunner().invoke(cli, ["hang", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "The job hung" not in done.output
