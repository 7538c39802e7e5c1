"""What the choice hangs on: the plan again with another batch, sequence, link or memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuscope.analyzers.planning.candidates import Question, Scored, best_of_each, scored
from gpuscope.analyzers.planning.layout import Layout
from gpuscope.hardware.link_rates import Link
from gpuscope.schema.plan_document import PlanChange


def sensitivity(question: Question, best: Sequence[Scored]) -> list[PlanChange]:
    """Each change by itself, beside the layouts as they are, the chosen one first."""
    base = _quickest(question, best)
    return [_changed(text, other, best[0], base) for text, other in _others(question)]


def _others(question: Question) -> Iterator[tuple[str, Question]]:
    cluster, model, batch = question.cluster, question.model, question.batch
    if batch % 2 == 0:
        yield "half the batch", replace(question, batch=batch // 2)
    yield "twice the batch", replace(question, batch=2 * batch)
    if batch % 2 == 0:
        longer = replace(model, sequence=2 * model.sequence)
        yield "sequences twice as long, as many tokens", replace(question, model=longer, batch=batch // 2)
    if cluster.network is not None:
        for text, factor in (("half the network", 0.5), ("twice the network", 2.0)):
            link = _scaled(cluster.network, factor)
            yield text, replace(question, cluster=replace(cluster, network=link))
    elif cluster.gpus > 1:
        link = _scaled(cluster.inside, 0.5)
        yield "half the bandwidth between GPUs", replace(question, cluster=replace(cluster, inside=link))
    for text, factor in (("a fifth less memory", 0.8), ("a fifth more memory", 1.2)):
        yield text, replace(question, cluster=replace(cluster, memory=round(factor * cluster.memory)))


def _scaled(link: Link, factor: float) -> Link:
    return replace(link, usable=factor * link.usable, peak=factor * link.peak)


def _rate(question: Question, row: Scored) -> float:
    return question.batch * question.model.sequence / row.estimate.seconds


def _quickest(question: Question, rows: Sequence[Scored]) -> float:
    """What can't be told apart goes by simplicity: the first may be a little slower than others."""
    return max(_rate(question, row) for row in rows)


def _changed(text: str, other: Question, best: Scored, base: float) -> PlanChange:
    found = best_of_each(scored(other))
    if not found:
        return {"change": text, "name": None, "same": False, "tokens_per_s": 0.0, "factor": 0.0}
    first = found[0]
    return {
        "change": text, "name": first.layout.name, "same": _sizes(first.layout) == _sizes(best.layout),
        "tokens_per_s": _rate(other, first), "factor": _quickest(other, found) / base,
    }  # fmt: skip


def _sizes(layout: Layout) -> tuple[object, ...]:
    own = layout
    return own.data, own.tensor, own.pipeline, own.context, own.expert, own.zero, own.shards, own.recompute
