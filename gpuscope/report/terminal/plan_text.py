"""A plan on the terminal: the choice first, what is assumed last."""

from __future__ import annotations

from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.plan_document import Plan, PlanEntry, PlanScaled
from gpuscope.words import units

_FRAMEWORKS = {
    "torchtitan": "torchtitan",
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
}


def render(plan: Plan, writer: Writer, *, full: bool = False) -> None:
    """Print a plan; `full` also prints the literature's rules and every assumption."""
    model, cluster = plan["model"], plan["cluster"]
    best = plan["candidates"][0]["name"] if plan["candidates"] else "Nothing fits this cluster"
    writer.line(writer.text(best, "bold green" if plan["candidates"] else "bold red"))
    active = model["active_parameters"]
    sparse = f" ({_weights(active)} active)" if active != model["parameters"] else ""
    writer.line(
        f"{model['name']}: {_weights(model['parameters'])} parameters{sparse}, "
        f"{units.size(model['states_bytes'])} of weights, gradients and optimizer; {plan['global_batch']} sequences of "
        f"{plan['sequence']:,} tokens per step ({plan['tokens']:,})",
        indent=2,
    )
    network = (
        f", {units.bandwidth(cluster['network_gbps'])} per GPU between hosts ({cluster['network']})"
        if cluster["network"]
        else ""
    )
    writer.line(
        f"{cluster['name']}: {units.size(cluster['usable_bytes'])} of {units.size(cluster['memory_bytes'])} usable and "
        f"{units.flop_rate(cluster['peak_flops_per_s'])} each, {cluster['inside']}{network}; "
        f"{units.count(plan['feasible'])} of {units.count(plan['considered'])} layouts fit",
        indent=2,
    )
    for rule in plan["rules"]:
        if rule["host"] and rule["applies"]:
            writer.line(writer.text("warning: ", "bold yellow"), f"{rule['rule']}; {rule['why']}", indent=2, hang=2)
    _calibration(plan, writer)
    _table(plan["candidates"], "Candidates", writer)
    _given(plan, writer)
    _table(plan["nearest"], "Nearest, with what they lack per GPU", writer)
    for entry in (plan["candidates"] or plan["nearest"])[:1]:
        _reasons(entry, writer)
    for sentence in [*plan["measured"], *filter(None, [plan["settling"]])]:
        writer.line(sentence, indent=2, hang=2)
    _hangs_on(plan, writer)
    _cost(plan, writer)
    _commands(plan, writer)
    _assumed(plan, writer, full)


def _weights(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e8 else f"{number / 1e6:.2f} million"


def _calibration(plan: Plan, writer: Writer) -> None:
    own = plan["calibration"]
    if own is None:
        return
    writer.line(
        f"Calibrated by {own['run']} ({own['layout']}): its step took {units.duration(own['measured_step_ns'])}, the "
        f"calibrated model gives {units.duration(own['estimated_step_ns'])}",
        indent=2,
    )
    for sentence in [*own["links"], *own["notes"]]:
        writer.line(sentence, indent=4, hang=2)
    if own["scaled"] is not None:
        _scaled(own["scaled"], writer)


def _scaled(own: PlanScaled, writer: Writer) -> None:
    grown = f"The run itself with dp {own['data_before']} → {own['data_after']}"
    if own["step_ns_after"] is None:
        writer.line(
            f"The run itself on {units.plural(own['ranks_after'], 'rank')}: can't tell, because {own['why']}",
            indent=2,
            hang=2,
        )
        return
    writer.line(
        writer.text(f"{grown}: ", "bold"),
        f"step {units.duration(own['step_ns_before'])} → {units.duration(own['step_ns_after'])} "
        f"({units.duration(own['low_ns'])} to {units.duration(own['high_ns'])}), "
        f"{units.share(own['efficiency_frac'])} of its throughput per rank; each rank's batch as recorded (weak "
        f"scaling), {own['global_batch']:,} sequences in all",
        indent=2,
        hang=2,
    )
    for sentence in [own["basis"], *(f"can't tell: {text}" for text in own["untold"])]:
        writer.line(writer.text(sentence, "dim"), indent=4, hang=2)


def _given(plan: Plan, writer: Writer) -> None:
    own = plan["given"]
    if own is None:
        return
    where = "makes no layout here"
    if own["entry"] is not None:
        where = f"place {own['place']} by its estimate" if own["fits"] else "does not fit"
    _table([own["entry"]] if own["entry"] else [], f"{own['path']} ({_FRAMEWORKS[own['framework']]}): {where}", writer)
    if own["entry"] is None:
        writer.heading(f"{own['path']} ({_FRAMEWORKS[own['framework']]}): {where}")
    for remark in own["remarks"]:
        writer.line(
            writer.text(f"{remark['kind'].replace('_', ' ')}: ", "bold"),
            f"{remark['key']} {remark['message']}",
            indent=2,
            hang=2,
        )


def _table(entries: list[PlanEntry], heading: str, writer: Writer) -> None:
    if not entries:
        return
    lacking = any(entry["lacks_bytes"] for entry in entries)
    writer.heading(heading)
    table = writer.table(">step", ">lacks" if lacking else ">slower", ">memory", ">exposed", ">bubble", "~layout")
    for entry in entries:
        cells = (
            units.duration(entry["estimate_ns"]),
            units.size(entry["lacks_bytes"]) if lacking else units.share(entry["slower_frac"]),
            units.share(entry["memory_frac"]),
            units.duration(sum(entry["exposed_ns"].values())),
            units.share(entry["bubble_frac"]),
        )
        table.add_row(*(writer.text(cell) for cell in cells), writer.text(entry["name"]))
    writer.show(table)


def _reasons(entry: PlanEntry, writer: Writer) -> None:
    writer.line("")
    writer.line(
        writer.text(f"{entry['name']}: ", "bold"),
        f"{units.plural(entry['micro_batches'], 'micro-batch', 'micro-batches')} per step",
    )
    writer.line(
        f"step: {units.duration(entry['low_ns'])} to {units.duration(entry['high_ns'])}; "
        f"{entry['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU, MFU {units.share(entry['mfu_frac'])}",
        indent=2,
        hang=2,
    )
    parts = ", ".join(f"{part} {units.size(size)}" for part, size in entry["memory_bytes"].items())
    writer.line(f"memory: {parts}", indent=2, hang=2)
    for sentence in entry["why"]:
        writer.line(sentence, indent=2, hang=2)


def _hangs_on(plan: Plan, writer: Writer) -> None:
    if not plan["sensitivity"]:
        return
    writer.heading("What the choice hangs on")
    table = writer.table("<change", ">tokens/s", "~best layout then")
    for row in plan["sensitivity"]:
        then = "nothing fits" if row["name"] is None else "the same" if row["same"] else row["name"]
        table.add_row(
            writer.text(row["change"]),
            writer.text(f"{row['factor']:.2f}×" if row["name"] else units.NONE),
            writer.text(then),
        )
    writer.show(table)


def _cost(plan: Plan, writer: Writer) -> None:
    good, cost = plan["goodput"], plan["cost"]
    if good is None:
        return
    writer.heading("Failures and cost")
    writer.line(
        f"A failure every {units.long_duration(good['mtbf_ns'])}; least is lost with a checkpoint (written in "
        f"{units.long_duration(good['checkpoint_ns'])}) every {units.long_duration(good['checkpoint_interval_ns'])}: "
        f"{units.share(good['goodput_frac'])} goodput"
    )
    if cost is not None:
        more = f", {cost['joules'] / 3.6e6:.3g} kWh" if cost["joules"] is not None else ""
        more += f", {cost['price']:.3g} at the given price" if cost["price"] is not None else ""
        writer.line(f"A million tokens take {cost['gpu_hours']:.3g} GPU hours{more}")


def _commands(plan: Plan, writer: Writer) -> None:
    if not plan["commands"]:
        return
    writer.heading("The first candidate as options")
    for name, text in plan["commands"].items():
        writer.line(writer.text(f"{_FRAMEWORKS[name]}: ", "bold"), text, hang=2)


def _assumed(plan: Plan, writer: Writer, full: bool) -> None:
    if full and plan["placement"]:
        writer.heading("Placement, from neighbouring ranks outwards")
        for sentence in plan["placement"]:
            writer.line(sentence, hang=2)
    if full:
        writer.heading("What the literature says")
        for rule in filter(lambda rule: not rule["host"], plan["rules"]):
            mark = writer.text("yes  ", "bold green") if rule["applies"] else writer.text("no   ", "dim")
            writer.line(mark, f"{rule['rule']}: {rule['why']} ({rule['source']})", hang=5)
    writer.heading("What is assumed")
    if plan["calibration"] is None:
        writer.line(
            "The order rests on published figures; it is not a prediction and does not separate layouts that differ by "
            "a few per cent. Record a run and plan again with --from, or compare runs of the first candidates."
        )
    for sentence in plan["assumptions"] if full else ():
        writer.line("- ", sentence, hang=2)
    if not full:
        writer.line("--full prints every assumption, the placement and the literature's rules.")
