"""Hangs by time-outs alone: watchdogs of several torch versions, gloo, launchers' prefixes, groups, dumps beside them.

Written as torch writes them (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, and gloo).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.flight_recorder import Group, dump, entry
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.cli import cli
from gpuscope.schema.memory_section import Hang

FOUR: Group = ("0", "default_pg", [0, 1, 2, 3])
DEFAULT = "0(default_pg)"
LIMIT = 600_000


def caught(
    rank: int,
    seq: int = 57,
    op: str = "ALLREDUCE",
    group: str = DEFAULT,
    *,
    numel: tuple[int, int] = (8, 8),
    enqueued: int | None = None,
    label: str = "[rank{0}]:",
    version: str = "2.6",
    local: int | None = None,
) -> list[str]:
    """What a rank's watchdog logs when its time is up; `local` is its rank within the group."""
    own = rank if local is None else local
    before = label.format(rank)
    last = seq if enqueued is None else enqueued
    sizes = f"NumelIn={numel[0]}, NumelOut={numel[1]}"
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, {sizes}, Timeout(ms)={LIMIT})"
    if version == "1.12":
        work = f"WorkNCCL(OpType={op}, TensorShape=[8], Timeout(ms)={LIMIT})"
    ran = f"Watchdog caught collective operation timeout: {work} ran for {LIMIT + 60} milliseconds before timing out."
    if version in ("1.12", "2.1"):
        return [f"{before}[E ProcessGroupNCCL.cpp:475] [Rank {own}] {ran}"]
    if version == "2.4":
        head = f"{before}[E711 09:12:44.101202 ProcessGroupNCCL.cpp:607] "
        name = group.replace("(", " (")
        return [
            f"{head}[Rank {own}] {ran}",
            f"{head}[PG {name} Rank {own}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {last}, last "
            f"completed NCCL work: {seq - 1}.",
        ]
    head = f"{before}[E711 09:12:44.000101202 ProcessGroupNCCL.cpp:632] "
    group_prefix = f"[PG ID 0 PG GUID {group} Rank {own}] "
    return [
        f"{head}[Rank {own}] {ran}",
        f"{head}{group_prefix} failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: "
        f"{last}, last completed work: {seq - 1}",
        f"{head}{group_prefix}Process group watchdog thread terminated with exception: [Rank {own}] {ran}",
    ]


def all_of(ranks: Iterable[int], *call: Any, **more: Any) -> list[str]:
    return [line for rank in ranks for line in caught(rank, *call, **more)]


def write(folder: Path, *lines: str, name: str = "job.log") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def hang(folder: Path) -> Hang:
    found = gpuscope.analyze(folder).report["hang"]
    if found["hung"]:
        shown = CliRunner().invoke(cli, ["hang", str(folder)])
        assert shown.exit_code == 0
        assert "no hang" not in shown.output
        assert "nothing in these" not in shown.output
    return found


def named(found: Hang) -> list[tuple[int, str]]:
    return [(cause["rank"], cause["kind"]) for cause in found["first_cause"]]


DUMP_SIGNAL = (
    "[rank{0}]:[E711 09:12:45.1 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from  rank {1} and we will try our best to dump the debug info. Last enqueued "
    "NCCL work: {2}, last completed NCCL work: {2}.This is most likely caused by incorrect usages of collectives"
)


# -- who reports nothing


@pytest.mark.parametrize("version", ["1.12", "2.1", "2.4", "2.6"])
@pytest.mark.parametrize(
    "label", ["[rank{0}]:", "[default{0}]:[rank{0}]:", "{0}: ", "[1,{0}]<stderr>:", "node-7: [rank{0}]:"]
)
def test_the_rank_that_reports_nothing_whatever_the_version_and_launcher(
    tmp_path: Path, version: str, label: str
) -> None:
    write(tmp_path, "world_size: 4", *all_of((0, 1, 3), version=version, label=label))
    found = hang(tmp_path)
    assert found["hung"]
    assert named(found) == [(2, "silent")]
    assert not found["first_cause"][0]["certain"]
    assert found["only_waited"] == [0, 1, 3]
    assert found["operations"][0]["op"] == "all_reduce"


@pytest.mark.parametrize(
    "launched",
    [
        "+ torchrun --nnodes 2 --nproc-per-node=4 train.py",
        "mpirun -np 8 --hostfile h python train.py",
        "srun --ntasks=8 python train.py",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8",
        "export WORLD_SIZE=8",
        "INFO using world size: 8, data-parallel size: 4",
    ],
)
def test_the_size_of_the_job_by_its_launcher(tmp_path: Path, launched: str) -> None:
    write(tmp_path, launched, *all_of(range(7)))
    assert named(hang(tmp_path)) == [(7, "silent")]


def test_a_gather_says_how_many_members_there_are(tmp_path: Path) -> None:
    write(tmp_path, *all_of((0, 1, 2, 4, 5, 6), op="_ALLGATHER_BASE", numel=(100, 800)))
    assert named(hang(tmp_path)) == [(3, "silent"), (7, "silent")]


def test_a_scatter_too_and_of_a_subgroup(tmp_path: Path) -> None:
    """Ranks 8 to 10 of a group of four; their numbers within it are no ranks of the job."""
    tensor_group = {"op": "_REDUCE_SCATTER_BASE", "group": "7(TENSOR_MODEL_PARALLEL_GROUP)", "numel": (400, 100)}
    lines = [line for rank in (8, 9, 10) for line in caught(rank, **tensor_group, local=rank - 8)]
    write(tmp_path, *lines)
    found = hang(tmp_path)
    assert named(found) == [(11, "silent")]
    assert found["only_waited"] == [8, 9, 10]


def test_members_apart_from_each_other(tmp_path: Path) -> None:
    write(tmp_path, *all_of((1, 5, 13), op="_ALLGATHER_BASE", group="30", numel=(10, 40)))
    assert named(hang(tmp_path)) == [(9, "silent")]


def test_torchruns_log_folder_and_the_last_line(tmp_path: Path) -> None:
    for rank in range(4):
        folder = f"logs/none_x/attempt_0/{rank}"
        write(tmp_path, *([] if rank == 1 else caught(rank)), name=f"{folder}/stderr.log")
        write(tmp_path, "step 55 loss 2.1", f"step {55 + (rank != 1)} saved to /data/ckpt", name=f"{folder}/stdout.log")
    found = hang(tmp_path)
    assert named(found) == [(1, "silent")]
    assert "«step 55 saved to /data/ckpt» (stdout.log:2)" in found["first_cause"][0]["why"]
    assert {
        "rank": 1,
        "sign": "last_line",
        "text": "step 55 saved to /data/ckpt",
        "file": "stdout.log",
        "line": 2,
    } in found["signs"]


def test_a_log_of_several_nodes_packed_with_a_bar_before_the_message(tmp_path: Path) -> None:
    """torchrun labels lines by the local rank; lines with both tell whose they are."""
    for node in (0, 1):
        lines = []
        for local in range(4):
            rank = 4 * node + local
            bar = f" 12%|#    | 12/100 [05:55<1:00, 1.47s/it]\r 13%|#    | 13/100 [05:56<1:00, 1.47s/it][rank{rank}]:"
            lines += caught(rank, label=bar if local == 0 else f"[default{local}]:[rank{rank}]:") if rank != 6 else []
        lines.append(f"[default{2}]:still reading shard {node}")
        write(tmp_path, *lines, name=f"node{node}.out.gz")
    found = hang(tmp_path)
    assert named(found) == [(6, "silent")]
    assert "still reading shard 1" in found["first_cause"][0]["why"]


def test_an_empty_log_is_told_as_such(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, *(caught(rank) if rank else []), name=f"rank{rank}.log")
    (cause,) = hang(tmp_path)["first_cause"]
    assert cause["rank"] == 0
    assert "its log is empty (rank0.log)" in cause["why"]


def test_a_message_far_from_a_long_logs_end_is_found(tmp_path: Path) -> None:
    filler = ["frame #1: c10d::Something (0x7f in /lib/libtorch.so)" * 3] * 20_000
    write(tmp_path, "begin", *(["x" * 200] * 500), *all_of((0, 1, 3)), *filler, name="train.out")
    assert named(hang(tmp_path)) == [(2, "silent")]


@pytest.mark.parametrize(
    ("op", "said"), [("BROADCAST", "whose source it may be"), ("ALLTOALL_BASE", "in all_to_all 57")]
)
def test_other_operations(tmp_path: Path, op: str, said: str) -> None:
    write(tmp_path, *all_of((1, 2, 3), op=op))
    (cause,) = hang(tmp_path)["first_cause"]
    assert cause["rank"] == 0
    assert said in cause["why"]


# -- who waits, and who does not


def test_a_rank_that_enqueued_more_or_less_waits_all_the_same(tmp_path: Path) -> None:
    lines = [line for rank, last in ((0, 60), (1, 57), (3, 58)) for line in caught(rank, enqueued=last)]
    write(tmp_path, *lines)
    assert named(hang(tmp_path)) == [(2, "silent")]


@given(
    ranks=st.integers(3, 12),
    absent=st.integers(0, 11),
    seq=st.integers(1, 10**6),
    ahead=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=25, deadline=None)
def test_however_far_others_enqueued_none_that_waits_is_named(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, absent: int, seq: int, ahead: list[int], order: Any
) -> None:
    folder, absent = tmp_path_factory.mktemp("job"), absent % ranks
    reports = [caught(rank, seq, enqueued=seq + ahead[rank]) for rank in range(ranks) if rank != absent]
    order.shuffle(reports)
    write(folder, f"world size: {ranks}", *(line for own in reports for line in own))
    found = gpuscope.analyze(folder).report["hang"]
    assert found["hung"]
    assert named(found) == [(absent, "silent")]


def test_a_rank_that_enqueued_less_is_behind_for_certain(tmp_path: Path) -> None:
    write(tmp_path, *all_of((0, 1, 3)), DUMP_SIGNAL.format(2, 0, 56))
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["kind"], cause["certain"]) == (2, "behind", True)
    assert "never enqueued all_reduce 57" in cause["why"]


def test_another_ranks_dump_signal_alone_proves_it(tmp_path: Path) -> None:
    write(tmp_path, DUMP_SIGNAL.format(4, 7, 9))
    found = hang(tmp_path)
    assert found["hung"]
    assert 7 in found["only_waited"]
    assert not any(cause["certain"] for cause in found["first_cause"])


def test_another_groups_operation(tmp_path: Path) -> None:
    write(tmp_path, *all_of((4, 5, 6), 40, "_REDUCE_SCATTER_BASE", "9", numel=(8, 2)), *caught(7, 12, group="3(DP)"))
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["kind"], cause["certain"]) == (7, "other_group", False)
    assert (
        "waits in all_reduce 12 of group 3 (DP), while ranks 4-6 wait in reduce_scatter 40 of group 9" in cause["why"]
    )


def test_two_and_two_in_different_order(tmp_path: Path) -> None:
    write(tmp_path, *all_of((0, 1), 5, group="1"), *all_of((2, 3), 8, group="2"))
    assert named(hang(tmp_path)) == [(rank, "circular") for rank in range(4)]


def test_those_held_up_elsewhere_are_not_named(tmp_path: Path) -> None:
    """Rank 7 is gone without a word: its tensor group waits in it, and the data groups wait for that one."""
    lines = all_of((4, 5, 6), 90, "_ALLGATHER_BASE", "12(TP)", numel=(8, 32))
    for rank in range(4):
        lines += caught(rank, 30, group=f"{20 + rank}(DP)", local=0)
    write(tmp_path, *lines)
    found = hang(tmp_path)
    assert found["hung"]
    assert named(found) == [(7, "silent")]
    assert found["only_waited"] == [0, 1, 2, 3, 4, 5, 6]


def test_where_all_wait_nobody_is_named(tmp_path: Path) -> None:
    write(tmp_path, "world_size=4", *all_of(range(4)))
    found = hang(tmp_path)
    assert found["hung"]
    assert found["first_cause"] == []
    assert any("the transfer itself does not end" in text for text in found["uncertain"])
    report = gpuscope.analyze(tmp_path).report
    (finding,) = [one for one in report["findings"] if one["code"] == "hang"]
    assert (finding["severity"], finding["ranks"]) == ("high", [])


def test_one_log_of_eight_names_nobody(tmp_path: Path) -> None:
    write(tmp_path, *caught(0, op="_ALLGATHER_BASE", numel=(10, 80)), name="rank0.log")
    found = hang(tmp_path)
    assert found["hung"]
    assert found["first_cause"] == []
    assert any("ranks 1-7" in text for text in found["uncertain"])


@pytest.mark.parametrize(
    ("odd", "said"), [({"op": "BROADCAST"}, "called broadcast as number 57"), ({"numel": (4, 4)}, "of 4 elements")]
)
def test_one_called_something_else(tmp_path: Path, odd: dict[str, Any], said: str) -> None:
    write(tmp_path, *all_of((0, 1, 2)), *caught(3, **odd))
    (cause,) = hang(tmp_path)["first_cause"]
    assert (cause["rank"], cause["kind"], cause["certain"]) == (3, "mismatch", True)
    assert said in cause["why"]


# -- watchdogs that stand still

STUCK = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {0}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
    "making progress in "
    "monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang",
    "[PG 0 Rank {0}] [PG 0 Rank {0}] Heartbeat monitor timed out! Process will be terminated after dumping debug info. "
    "workMetaList_.size()=2",
    "[Rank {0}] [PG 0 (default_pg) Rank {0}] Terminating the process after attempting to dump debug info, due to "
    "ProcessGroupNCCL "
    "watchdog hang.",
)


@pytest.mark.parametrize("text", STUCK)
def test_a_watchdog_that_stands_still(tmp_path: Path, text: str) -> None:
    stuck = [f"[rank{rank}]:[F711 09:20:44.1 ProcessGroupNCCL.cpp:1743] {text.format(rank)}" for rank in (5, 7)]
    write(tmp_path, *all_of((0, 1, 2, 3, 4, 6)), *stuck)
    found = hang(tmp_path)
    assert named(found) == [(5, "watchdog_stuck"), (7, "watchdog_stuck")]
    assert "blocked in a CUDA or NCCL call, or by the GIL" in found["first_cause"][0]["why"]
    assert "ranks 5 and 7" in CliRunner().invoke(cli, ["hang", str(tmp_path)]).output


def test_one_that_stands_still_after_its_time_out_only_waited(tmp_path: Path) -> None:
    after = [f"[rank{rank}]:[F711 09:20:44.1 ProcessGroupNCCL.cpp:1743] {STUCK[0].format(rank)}" for rank in (0, 1, 3)]
    write(tmp_path, *all_of((0, 1, 3)), *after)
    assert named(hang(tmp_path)) == [(2, "silent")]


def test_a_watchdog_alone(tmp_path: Path) -> None:
    write(tmp_path, f"[rank3]:[F711 09:20:44.1 ProcessGroupNCCL.cpp:1743] {STUCK[0].format(3)}")
    assert named(hang(tmp_path)) == [(3, "watchdog_stuck")]


# -- gloo


def test_gloo_and_the_barrier_that_names_ranks(tmp_path: Path) -> None:
    waits = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting "
        "1800000ms for recv operation to complete"
    )
    write(tmp_path, *(f"[rank{rank}]: {waits}" for rank in (0, 2)))
    found = hang(tmp_path)
    assert named(found) == [(1, "silent")]
    write(tmp_path, f"[rank0]: {waits}", "[rank0]: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms")
    assert named(hang(tmp_path)) == [(1, "behind"), (3, "behind")]


# -- dumps beside them


def test_dumps_on_demand_do_not_undo_a_time_out(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        dump(tmp_path, rank, [FOUR], [entry(FOUR, 1, done=True)], gpuscope_note="on demand", dumped_ns=1)
    write(tmp_path, *all_of((0, 1, 3)))
    found = hang(tmp_path)
    assert found["hung"]
    assert named(found) == [(2, "silent")]


def test_dumps_that_name_the_rank_lead(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [FOUR], [entry(FOUR, 1, done=True), *([] if rank == 3 else [entry(FOUR, 2)])])
    write(tmp_path, *all_of((0, 1, 2), 2), "[rank3]: step 1 done")
    assert named(hang(tmp_path)) == [(3, "never_arrived")]


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_nothing_is_certain_of_empty_dumps(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    group: Group = ("0", "default_pg", [0, 1])
    for rank in (0, 1):
        dump(tmp_path, rank, [group], [] if rank in ranks else [entry(group, 1)])
    found = gpuscope.analyze(tmp_path).report["hang"]
    assert found["certain"] == []
    assert not any(cause["certain"] for cause in found["first_cause"])
    if len(ranks) == 2:
        assert "can't tell whether the job hung" in CliRunner().invoke(cli, ["hang", str(tmp_path)]).output


# -- where it must be silent

HEALTHY = (
    "[rank0]:[I711 09:12:44.1 ProcessGroupNCCL.cpp:1800] [PG ID 0 PG GUID 0(default_pg) Rank 0] NCCL Work update "
    "periodically: last "
    "enqueued NCCL work: 100, last completed NCCL work: 99.",
    "[rank1]:[I711 09:12:44.1 ProcessGroupNCCL.cpp:1800] [PG ID 0 PG GUID 0(default_pg) Rank 1] NCCL Work update "
    "periodically: last "
    "enqueued NCCL work: 90, last completed NCCL work: 90.",
    "[rank0]:[I711 09:12:44.1 ProcessGroupNCCL.cpp:867] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL "
    "initialization options: size: 2, "
    "TIMEOUT(ms): 600000, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480",
    "step 100 loss 2.1",
)


def test_a_healthy_jobs_reports_are_no_hang(tmp_path: Path) -> None:
    write(tmp_path, *HEALTHY)
    assert not gpuscope.analyze(tmp_path / "job.log").report.get("hang", {}).get("hung")
    assert "Nothing in these files tells of a hang" in CliRunner().invoke(cli, ["hang", str(tmp_path)]).output


def test_a_run_that_came_to_its_end_did_not_hang(tmp_path: Path) -> None:
    """A log of an earlier attempt beside its manifest."""
    for rank in range(4):
        dump(tmp_path, rank, [FOUR], [entry(FOUR, 1, done=True)], gpuscope_note="at the end", dumped_ns=1)
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed"}))
    assert not gpuscope.analyze(tmp_path).report["hang"]["hung"]


def test_the_page_and_the_first_lines_say_it(tmp_path: Path) -> None:
    write(tmp_path, "world_size=4", *all_of((0, 1, 3)))
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(cli, ["hang", str(tmp_path), "--html", str(page)])
    assert shown.exit_code == 0
    assert "reports no time-out, while ranks 0-1 and 3 wait in all_reduce 57" in page.read_text()
    first = CliRunner().invoke(cli, ["analyze", str(tmp_path), "--no-store"]).output
    assert first.startswith("The job hung, perhaps through rank 2")
