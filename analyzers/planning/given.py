"""A framework's configuration beside the candidates: what it takes, its place, what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.analyzers.planning.candidates import Question, Scored, as_it_is, least_recomputed, place
from gpuscope.analyzers.planning.entries import entry
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import ULYSSES, Layout
from gpuscope.analyzers.planning.settings.values import Setup
from gpuscope.schema.plan_document import PlanGiven, PlanRemark


def given(question: Question, path: str, setup: Setup, best: list[Scored]) -> PlanGiven:
    """What the file asks for, estimated; without an estimate where its sizes do not divide the model or the batch."""
    remarks = [*setup.remarks]
    if setup.layout is not None:
        remarks += _impossible(question.model, setup.layout, question.batch)
    row = None
    if setup.layout is not None and len(remarks) == len(setup.remarks):
        own = replace(question, framework=setup.framework)
        row = (as_it_is if setup.recomputes else least_recomputed)(own, setup.layout)
    fits = row is not None and row.lacks == 0
    return {
        "path": path, "framework": setup.framework, "fits": fits, "place": place(row, best) if row and fits else None,
        "entry": entry(question, row, best) if row else None, "remarks": remarks,
    }  # fmt: skip


def _impossible(model: Model, own: Layout, batch: int) -> list[PlanRemark]:
    """Sizes that do not divide what they must."""
    heads = model.kv_heads or model.heads
    ulysses = own.context if own.exchange == ULYSSES else 1
    wrong = {
        "tensor parallelism": (own.tensor > 1 and bool(model.heads % own.tensor), f"{model.heads} heads"),
        "sequence parallelism": (ulysses > 1 and bool(heads % (own.tensor * ulysses)), f"{heads} key and value heads"),
        "context parallelism": (bool(model.sequence % own.context), f"{model.sequence:,} tokens"),
        "expert parallelism": (own.expert > 1 and bool(model.experts % own.expert), f"{model.experts} experts"),
        "the pipeline": (own.pipeline * own.chunks > model.layers, f"{model.layers} layers"),
        "data-parallel ranks x micro-batch": (bool(batch % (own.data * own.micro_batch)), f"a batch of {batch}"),
    }
    return [
        {"key": key, "kind": "contradiction", "message": f"does not divide {what}"}
        for key, (found, what) in wrong.items() if found
    ]  # fmt: skip
