"""The tree of places of the program: made, merged over files, and summed up by line, module, operator or kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from gpuscope.schema.call_tree_section import PlaceEntry, PlaceKind
from gpuscope.when_used import dataclass

NOWHERE = "no recorded host event"
KEPT_FRAC = 0.0005
"""Share of all that is attributed from which a place is told apart; smaller ones count for the place above them."""

Step = tuple[PlaceKind, str]
Figures = list[int]
"""Device time, exposed communication and idle time, ns."""
By = Literal["line", "module", "operator", "kernel"]


@dataclass
class Tree:
    """A place, and those below it."""

    own: Figures = field(default_factory=lambda: [0, 0, 0])
    below: dict[Step, Tree] = field(default_factory=dict)

    def at(self, path: Sequence[Step]) -> Tree:
        """The place at the end of a path, made where it is not there."""
        place = self
        for step in path:
            place = place.below.setdefault(step, Tree())
        return place

    def add(self, figures: Sequence[int]) -> None:
        """Add figures of its own."""
        self.own = [one + more for one, more in zip(self.own, figures, strict=True)]

    def total(self) -> int:
        """All figures of it and of those below, added up: by that it is told apart or not."""
        return sum(self.own) + sum(place.total() for place in self.below.values())

    def prune(self, least: float) -> None:
        """Let go places smaller than `least`, which then count for the one above."""
        for step, place in list(self.below.items()):
            place.prune(least)
            if place.total() < least and not place.below:
                self.add(place.own)
                del self.below[step]

    def entries(self) -> list[PlaceEntry]:
        """One entry per place, each behind the one above it, the largest first."""
        self.prune(KEPT_FRAC * self.total())
        if any(self.own):
            self.at([("unknown", NOWHERE)]).add(self.own)
        found: list[PlaceEntry] = []
        self._append(found, None)
        return found

    def _append(self, found: list[PlaceEntry], parent: int | None) -> None:
        for (kind, name), place in sorted(self.below.items(), key=lambda one: (-one[1].total(), one[0])):
            device, exposed, idle = place.own
            number = len(found)
            found.append(
                {
                    "id": number,
                    "parent": parent,
                    "kind": kind,
                    "name": name,
                    "device_ns": device,
                    "exposed_communication_ns": exposed,
                    "idle_ns": idle,
                }
            )
            place._append(found, number)


def merge(values: Sequence[list[PlaceEntry]]) -> list[PlaceEntry]:
    """The trees of several files as one."""
    tree = Tree()
    for entries in values:
        places: dict[int | None, Tree] = {None: tree}
        for entry in entries:
            place = places[entry["id"]] = places[entry["parent"]].at([(entry["kind"], entry["name"])])
            place.add((entry["device_ns"], entry["exposed_communication_ns"], entry["idle_ns"]))
    return tree.entries()


def led_to_lines(entries: list[PlaceEntry], lines: Mapping[str, str]) -> list[PlaceEntry]:
    """The tree with the kernels that Inductor generated below the user's `lines` which they were made of."""
    if not any(entry["kind"] == "kernel" and entry["name"] in lines for entry in entries):
        return entries
    tree = Tree()
    paths: dict[int | None, list[Step]] = {None: []}
    for entry in entries:
        line: list[Step] = (
            [("line", lines[entry["name"]])] if entry["kind"] == "kernel" and entry["name"] in lines else []
        )
        path = paths[entry["id"]] = [*paths[entry["parent"]], *line, (entry["kind"], entry["name"])]
        tree.at(path).add(figures(entry))
    return tree.entries()


def only(entries: Sequence[PlaceEntry], kind: PlaceKind) -> list[PlaceEntry]:
    """The tree of places of one kind, with the kernels launched within; what has none around it stands below one
    unknown place."""
    tree = Tree()
    nowhere: Step = ("unknown", f"no {kind} around it")
    paths: dict[int | None, list[Step]] = {None: []}
    for entry in entries:
        above = paths[entry["parent"]]
        step = [(entry["kind"], entry["name"])] if entry["kind"] in (kind, "kernel") else []
        path = paths[entry["id"]] = [*above, *step]
        outside = not path or path[0][0] != kind
        tree.at([nowhere, *path] if outside else path).add(figures(entry))
    return tree.entries()


@dataclass(frozen=True)
class Row:
    """What goes back to one line, module, operator or kernel; ns, summed over ranks."""

    name: str
    device_ns: int
    exposed_communication_ns: int
    idle_ns: int


def rows(entries: Sequence[PlaceEntry], by: PlaceKind) -> list[Row]:
    """A row per line, module, operator or kernel, the largest first: each place counts for the innermost of that kind
    around it, a module under its whole path. The name is empty for what has none around it."""
    sums: dict[str, list[int]] = {}
    names: dict[int | None, str] = {None: ""}
    for entry in entries:
        above = names[entry["parent"]]
        path = f"{above}/{entry['name']}" if by == "module" and above else entry["name"]
        name = names[entry["id"]] = path if entry["kind"] == by else above
        own = sums.setdefault(name, [0, 0, 0])
        for place, value in enumerate(figures(entry)):
            own[place] += value
    found = [Row(name, *own) for name, own in sums.items() if any(own)]
    return sorted(found, key=lambda row: (-(row.device_ns + row.idle_ns), row.name))


def inclusive(entries: Sequence[PlaceEntry]) -> dict[int, Figures]:
    """By id, the figures of each place with all that is below it."""
    within = {entry["id"]: list(figures(entry)) for entry in entries}
    for entry in reversed(entries):  # each stands behind the one above it
        if entry["parent"] is not None:
            above = within[entry["parent"]]
            within[entry["parent"]] = [one + more for one, more in zip(above, within[entry["id"]], strict=True)]
    return within


def covered(entries: Sequence[PlaceEntry], by: By) -> float | None:
    """Share of the device time that has such a place around it; None without device time."""
    table = rows(entries, by)
    everything = sum(row.device_ns for row in table)
    return 1 - sum(row.device_ns for row in table if not row.name) / everything if everything else None


def stacks(entries: Sequence[PlaceEntry]) -> Iterator[tuple[list[str], PlaceEntry]]:
    """Each place with figures of its own, and the names from the outermost down to it."""
    paths: dict[int | None, list[str]] = {None: []}
    for entry in entries:
        path = paths[entry["id"]] = [*paths[entry["parent"]], entry["name"]]
        if any(figures(entry)):
            yield path, entry


def figures(entry: PlaceEntry) -> tuple[int, int, int]:
    """Device time, exposed communication and idle time of its own, ns."""
    return entry["device_ns"], entry["exposed_communication_ns"], entry["idle_ns"]
