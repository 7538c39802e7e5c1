"""Findings of single ranks as findings of the run: shares are of all ranks' windows (definitions), and what several
ranks have alike is one finding."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuscope.analyzers.base.analyzer import EVIDENCE, LaneKey
from gpuscope.catalogue.finding import kinds, made
from gpuscope.schema.document import FindingEntry


def of_run(found: Iterable[FindingEntry], windows: Mapping[LaneKey, int]) -> list[FindingEntry]:
    """The findings of each lane's own analyses; `windows` is the judged time of every lane of the run, ns. One of no
    rank or of several, and one that costs no share, stays as it is."""
    alike: dict[str, list[FindingEntry]] = defaultdict(list)
    for one in found:
        facts = {name: value for name, value in one["facts"].items() if name != "share"}
        of_one = len(windows) > 1 and len(one["ranks"]) == 1 and one["share_frac"] > 0
        alike[json.dumps([one["code"], facts] if of_one else len(alike))].append(one)
    return [own[0] if key.isdigit() else _joined(own, windows) for key, own in alike.items()]


def _joined(own: list[FindingEntry], windows: Mapping[LaneKey, int]) -> FindingEntry:
    share = sum(one["share_frac"] * _window(one["ranks"][0], windows) for one in own) / sum(windows.values())
    facts = own[0]["facts"]
    words = kinds()[own[0]["code"]](**facts | ({"share": share} if "share" in facts else {}))
    evidence = sorted((item for one in own for item in one["evidence"]), key=lambda item: -item["dur_ns"])
    entry = made(
        words,
        ranks={one["ranks"][0] for one in own},
        share=share,
        cost_ns=sum(one["cost_ns"] or 0 for one in own),
        mean_ns=round(sum(one["cost_ns_per_step"] or 0 for one in own) / len(windows)),
        evidence=evidence[:EVIDENCE],
    )
    return {**entry, "worst_share_frac": max(one["share_frac"] for one in own)}


def _window(rank: int, windows: Mapping[LaneKey, int]) -> float:
    """Of one of its lanes; they have the same steps."""
    own = [window for (one, _), window in windows.items() if one == rank]
    return sum(own) / len(own)
