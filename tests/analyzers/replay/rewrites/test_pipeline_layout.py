"""Pipelines laid out anew: two stages, by hand; times in ns."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush
from gpuscope.analyzers.replay.graph import UnreplayableError
from gpuscope.analyzers.replay.rewrites.pipeline_layout import PipelineReplay, delays_of, length, plan, recorded
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, Schedule


def flush(*stages: str) -> Flush:
    """`F0:0-10 B0:20-40`: kind and micro-batch, start and end; stage s holds model chunk s."""
    found = []
    for stage, text in enumerate(stages):
        own = []
        for item in text.split():
            name, span = item.split(":")
            start, end = map(int, span.split("-"))
            own.append(Computation(name[0], int(name[1:]), stage, start, end))
        found.append(tuple(own))
    return Flush(0, 0, tuple(found))


# GPipe, F 10, B 20, messages in no time: the first stage idles from 20 to 40 and from 60 on.
GPIPE = flush("F0:0-10 F1:10-20 B0:50-70 B1:70-90", "F0:10-20 F1:20-30 B0:30-50 B1:50-70")

WHOLE = {"F": 1.0, "B": 1.0}


def test_the_recorded_order_gives_the_recorded_length() -> None:
    assert length(recorded(GPIPE), delays_of(GPIPE)) == 90


def test_messages_and_pauses_are_kept() -> None:
    """Stage 1 gets F0 5 late; stage 0 gets B0 7 late, and pauses 2 between its forwards. Other kinds pause
    otherwise: on the last stage the loss stands before the backward, and is as much shorter as a micro-batch."""
    found = delays_of(flush("F0:0-10 B0:42-62", "F0:15-25 B0:25-35"))
    assert found.message == {"FB": 5, "B": 7}
    found = delays_of(flush("F0:0-10 F1:12-22 B0:60-70 B1:70-80", "F0:10-20 F1:22-32 B0:32-60 B1:60-70"))
    assert found.pause == [{"FF": 2, "BB": 0}, {"FB": 0, "BB": 0}]
    loss = flush("F0:0-8 B0:28-36", "F0:8-16 B0:20-28")
    assert delays_of(loss).pause[1] == {"FB": 4}
    # All of 2, and pauses of 1, for no others are known: stage 1 from 2 on, its backwards at 14, 17, 20, 23;
    # stage 0's last one from 25 on.
    assert PipelineReplay((loss,), {}).saved([MicroBatches(4)], -1) == 36 - 27
    # What is done for each forward stays as it is.
    pausing = flush("F0:0-10 F1:12-22 B0:42-52 B1:62-72", "F0:10-20 F1:22-32 B0:32-42 B1:52-62")
    assert delays_of(pausing).scaled(0.5).pause[0]["FF"] == 2


# 1F1B: stage 0 sends F0 and computes on, which takes its message 8; it waits behind F1, which stage 1 receives within
# its pause of 1.
ALTERNATING = flush("F0:0-10 F1:10-20 B0:48-68 B1:79-99", "F0:18-28 B0:28-48 F1:49-59 B1:59-79")


def test_a_message_takes_as_long_as_its_sender_lets_it() -> None:
    """A thread that computes blocks for its messages: what was sent before is received in the pause. Of a device this
    is not known, for its streams receive beside kernels."""
    found = delays_of(ALTERNATING, blocking=True)
    assert found.message == {"FF": 8, "FB": 1, "BF": 0, "B": 0}
    assert delays_of(ALTERNATING).message == {"FF": 8, "BF": 0, "B": 0}
    assert [found.arriving("F", "B"), delays_of(ALTERNATING).arriving("F", "B")] == [1, 8]


def test_messages_of_a_longer_steady_state() -> None:
    """Four of F 5, B 10: stage 1 works from 13 to 76 with three pauses of 1, and stage 0's last backward ends at 86.
    Were each message as slow as the first one, F2 and F3 would keep stage 1 waiting."""
    assert PipelineReplay((ALTERNATING,), {}).saved([MicroBatches(4)], -1) == 99 - 86
    assert PipelineReplay((ALTERNATING,), {}, gpu=True).saved([MicroBatches(4)], -1) < 99 - 86


def test_more_micro_batches_of_the_same_batch() -> None:
    """4 for 2: F 5, B 10. Stage 1 works from 5 to 65, the first one's last backward ends at 75: 15 saved.
    At worst a quarter of the time does not shrink: 6.25 and 12.5, so 93.75: nothing is gained."""
    replay = PipelineReplay((GPIPE,), {})
    assert replay.saved([MicroBatches(4)], -1) == 15
    assert replay.saved([MicroBatches(4)], 1) == pytest.approx(-3.75, abs=5)
    assert replay.saved([MicroBatches(2)], 0) == 0


def test_a_told_share_does_not_shrink() -> None:
    """Of each forward 40 % are fixed, of a backward none: four of 7 and 10. Stage 1 from 7 to 75, the end 10 later."""
    replay = PipelineReplay((GPIPE,), {"F": 0.4, "B": 0.0})
    assert replay.saved([MicroBatches(4)], 0) == 90 - (7 + 4 * 7 + 4 * 10 + 10)
    assert "20 % of a micro-batch's time assumed to be fixed (operators' dispatch, as recorded)" in replay.basis(
        [MicroBatches(4)]
    )


def test_an_even_split() -> None:
    """Stage 0 takes 10 and 10, stage 1 30 and 30: 10 + 2·60 + 10; even 20 and 20: 20 + 2·40 + 20."""
    uneven = flush("F0:0-10 F1:10-20 B0:100-110 B1:130-140", "F0:10-40 F1:40-70 B0:70-100 B1:100-130")
    replay = PipelineReplay((uneven,), {})
    assert [replay.saved([EvenStages()], bias) for bias in (-1, 0, 1)] == [20, 20, 20]
    places = replay.places(uneven, EvenStages())
    assert (places["F", 1, 0], places["B", 1, 1], places["B", 0, 1]) == ((20, 40), (80, 100), (100, 120))


def test_times_differ_after_a_change_as_they_did() -> None:
    """F1 takes 12 and F0 8 on stage 0: even stages keep that; of four micro-batches, two are like the first."""
    uneven = flush("F0:0-8 F1:8-20 B0:50-70 B1:70-90", "F0:8-18 F1:20-30 B0:30-50 B1:50-70")
    forwards = {"F": 0.5, "B": 0.5}
    assert [task.dur for task in plan(uneven, EvenStages(), WHOLE)[0]] == [8, 12, 20, 20]
    assert [task.dur for task in plan(uneven, MicroBatches(4), forwards)[0]] == [4, 6, 4, 6, 10, 10, 10, 10]
    # Three of them are as long as the mean, whichever these are.
    assert sum(task.dur for task in plan(uneven, MicroBatches(3), forwards)[0][:3]) == pytest.approx(15)


def test_a_message_that_was_sent_before_is_received_in_the_pause() -> None:
    """Stage 1 is slow and receives F1 in its pause of 6, where others take 1. Even, stage 0 no longer waits for its
    second gradient, and receives it within a pause of its own, 1, and the 6 that the message takes; no longer than such
    pauses take elsewhere."""
    slow = flush("F0:0-10 F1:11-21 B0:126-136 B1:167-177", "F0:16-46 F1:52-82 B0:90-120 B1:121-151")
    assert delays_of(slow).pause == [{"FF": 1}, {"FF": 6, "FB": 8, "BB": 1}]
    assert [delays_of(slow).between(0, "B", "B"), delays_of(slow).between(1, "B", "F")] == [6, 6]
    assert delays_of(slow).between(0, "B", "F") == 1
    # Nothing is known of such pauses where every message was waited for: it takes as long as those that were.
    waited = flush("F0:0-10 B0:42-62", "F0:15-25 B0:25-35")
    assert delays_of(waited).between(0, "B", "B") == 7


def test_one_forward_one_backward_orders_alike() -> None:
    """Two stages, two micro-batches: the last stage alternates, B0 at 20 for 30: the first one's ends at 80 + …"""
    tasks = plan(GPIPE, Schedule("1f1b"), WHOLE)
    assert [[(t.kind, t.micro_batch) for t in own] for own in tasks] == [
        [("F", 0), ("F", 1), ("B", 0), ("B", 1)],
        [("F", 0), ("B", 0), ("F", 1), ("B", 1)],
    ]
    # Stage 1: F0 10–20, B0 20–40, F1 40–50, B1 50–70; stage 0: B0 40–60, B1 70–90.
    assert length(tasks, delays_of(GPIPE)) == 90


def test_what_can_not_be_told_is_refused() -> None:
    with pytest.raises(UnreplayableError, match="weight gradients"):
        plan(GPIPE, Schedule("zbv"), WHOLE)
