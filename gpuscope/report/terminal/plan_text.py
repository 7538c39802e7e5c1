"""A plan on the terminal: the candidates first, what is assumed last."""

from __future__ import annotations

from gpuscope.report.schema.plan_document import Plan, PlanEntry
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import units


def render(plan: Plan, writer: Writer) -> None:
    """Print a plan."""
    model, cluster = plan["model"], plan["cluster"]
    best = plan["candidates"][0]["name"] if plan["candidates"] else "Nothing fits this cluster"
    writer.line(writer.text(best, "bold green" if plan["candidates"] else "bold red"))
    writer.line(
        f"{model['name']}: {model['parameters'] / 1e9:.2f} billion parameters, "
        f"{units.size(model['states_bytes'])} of weights, gradients and optimizer; {plan['global_batch']} sequences of "
        f"{plan['sequence']:,} tokens per step",
        indent=2,
    )
    network = f", {cluster['network']} per GPU between hosts" if cluster["network"] else ""
    writer.line(
        f"{cluster['name']}: {units.size(cluster['memory_bytes'])} and {units.flop_rate(cluster['peak_flops_per_s'])} "
        f"each, {cluster['inside']}{network}; {units.count(plan['feasible'])} of "
        f"{units.count(plan['considered'])} layouts fit",
        indent=2,
    )
    _candidates(plan, writer)
    if plan["placement"]:
        writer.heading("Placement, from neighbouring ranks outwards")
        for sentence in plan["placement"]:
            writer.line(sentence, hang=2)
    writer.heading("What the literature says")
    for rule in plan["rules"]:
        mark = writer.text("yes  ", "bold green") if rule["applies"] else writer.text("no   ", "dim")
        writer.line(mark, f"{rule['rule']}: {rule['why']} ({rule['source']})", hang=5)
    writer.heading("What is assumed")
    writer.line(
        "The ranking rests on these assumptions; it is not a prediction and does not separate layouts that differ by "
        "a few per cent. Record runs of the top candidates and compare."
    )
    for sentence in plan["assumptions"]:
        writer.line("- ", sentence, hang=2)


def _candidates(plan: Plan, writer: Writer) -> None:
    if not plan["candidates"]:
        return
    writer.heading("Candidates, memory per GPU")
    table = writer.table(">memory", ">states", ">activ.", ">sent/step", ">bubble", ">order by", "~layout")
    for entry in plan["candidates"]:
        parts = entry["memory_bytes"]
        cells = (
            units.share(entry["memory_frac"]), units.size(sum(parts.values()) - parts["activations"]),
            units.size(parts["activations"]), units.size(sum(entry["volume_bytes"].values())),
            units.share(entry["bubble_frac"]), units.duration(entry["estimate_ns"]),
        )  # fmt: skip
        table.add_row(*(writer.text(cell) for cell in cells), writer.text(entry["name"]))
    writer.show(table)
    _reasons(plan["candidates"][0], writer)


def _reasons(entry: PlanEntry, writer: Writer) -> None:
    writer.line("")
    writer.line(
        writer.text(f"{entry['name']}: ", "bold"),
        f"{units.plural(entry['micro_batches'], 'micro-batch', 'micro-batches')} per step",
    )
    parts = ", ".join(f"{part} {units.size(size)}" for part, size in entry["memory_bytes"].items())
    writer.line(f"memory: {parts}", indent=2, hang=2)
    for sentence in entry["why"]:
        writer.line(sentence, indent=2, hang=2)
