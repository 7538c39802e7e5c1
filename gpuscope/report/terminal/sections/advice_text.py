"""The terminal report's part on what to change."""

from __future__ import annotations

from gpuscope.catalogue import prediction_sentences
from gpuscope.catalogue.prediction_sentences import bound_change, bound_share, setting_words
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import memory_sentences
from gpuscope.schema.document import Report, SuggestionEntry, UnpredictedEntry


def section(report: Report, writer: Writer) -> None:
    """The suggestions with their predicted gain, or why there are none."""
    suggestions, advice = report["suggestions"], report["advice"]
    if not (suggestions or advice["unpredicted"] or advice["why"]):
        return
    writer.heading("What to change")
    if advice["why"]:
        writer.line(f"Nothing: {advice['why']}.")
    for suggestion in suggestions:
        _suggestion(suggestion, writer)
    _plan(report, writer)
    for cause in advice.get("nothing_gains", []):
        writer.line(prediction_sentences.nothing_gains(cause))
    for one in advice["unpredicted"]:
        _unpredicted(one, writer)


def _plan(report: Report, writer: Writer) -> None:
    """The changes that are best made together; else that gains do not add up."""
    plan = report["advice"].get("plan")
    if plan is not None:
        writer.line(writer.text("Together", "bold"), f"  {prediction_sentences.plan(plan)}", hang=10)
    elif why := report["advice"].get("no_plan"):
        writer.line(writer.text("Together", "bold"), f"  not predicted: {why}", hang=10)
    elif len(report["suggestions"]) > 1:
        writer.line(writer.text("Gains do not add up: findings overlap.", "dim"))


def _suggestion(suggestion: SuggestionEntry, writer: Writer) -> None:
    predicted = suggestion["predicted"]
    writer.line(writer.text(suggestion["action"], "bold"), writer.text(f"  [for {suggestion['finding']}]", "dim"))
    # Without a timeline only memory is known; the basis says how much.
    step = f"{prediction_sentences.gain(suggestion)}; " if predicted["step_ns_before"] else ""
    for word, sentence in (
        ("set", setting_words(suggestion, brief=False)),
        ("gain", step + predicted["basis"]),
        ("why", suggestion["why"]),
        ("risk", suggestion["risk"]),
        ("verify", suggestion["verify"]),
    ):
        if sentence:
            writer.line(f"{word:<8}", sentence, indent=2, hang=8)


def _unpredicted(one: UnpredictedEntry, writer: Writer) -> None:
    saves = memory_sentences.saving(one) if "memory_bound" in one else ""
    whose = f", {one['path'].rpartition('/')[2]}" if "path" in one else ""
    known = saves or "bound" in one
    title = writer.text(one["action"] if known else f"Gain not estimated: {one['action']}", "bold")
    writer.line(title, writer.text(f"  [for {one['finding']}{whose}]", "dim"))
    writer.line(f"{'set':<8}", setting_words(one, brief=False), indent=2, hang=8)
    if saves:
        writer.line(f"{'saves':<8}", f"at most {saves}: {one['memory_bound']['basis']}", indent=2, hang=8)
    if "bound" in one:
        gain = f"{bound_share(one['bound'])}: {bound_change(one['bound'])}"
        writer.line(f"{'gain':<8}", gain, indent=2, hang=8)
    writer.line(f"{'why not' if not saves else 'time':<8}", one["why_not"], indent=2, hang=8)
    if one.get("verify"):
        writer.line(f"{'verify':<8}", one["verify"], indent=2, hang=8)
