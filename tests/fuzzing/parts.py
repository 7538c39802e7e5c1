"""Mutations of a reduced part (`.gsr`): the JSON in it, and its arrays, in a zip that is well-formed again."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import numpy as np

from fuzzing import values
from gpuscope.analyzers.run.reduction.part_file import HEAD, digest


def mutated(data: bytes, random: Random) -> tuple[bytes, str]:
    """A changed part, and what was done to it."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        members = {name: held[name] for name in held.files}
    texts = [name for name in members if members[name].dtype == np.uint8 and _json(members[name]) is not None]
    if random.random() < 0.6:
        name = random.choice(texts)
        found, what = values.mutated(_json(members[name]), random)
        members[name] = np.frombuffer(json.dumps(found).encode(), np.uint8)
    else:
        name = random.choice(sorted(members))
        members[name], what = _array(members[name], random)
    if random.random() < 0.1:
        del members[random.choice(sorted(members))]
        what = "member dropped"
    if HEAD in members and random.random() < 0.5:  # as somebody would who means harm
        head = _json(members.pop(HEAD))
        if isinstance(head, dict):
            head["digest"] = digest(members)
        members = {HEAD: np.frombuffer(json.dumps(head).encode(), np.uint8), **members}
    file = io.BytesIO()
    np.savez_compressed(file, **members)
    return file.getvalue(), f"part: {what}"


def _json(array: Any) -> Any:
    try:
        return json.loads(array.tobytes())
    except ValueError:
        return None


def _array(array: Any, random: Random) -> tuple[Any, str]:
    what = random.choice(["shortened", "emptied", "of another type", "changed", "of another shape"])
    if what == "shortened":
        return array[: len(array) // 2], f"array {what}"
    if what == "emptied":
        return array[:0], f"array {what}"
    if what == "of another type":
        return array.astype(random.choice([np.float64, np.int8, np.uint64, "S4"])), f"array {what}"
    if what == "of another shape":
        return np.stack([array, array]), f"array {what}"
    changed = array.copy()
    if len(changed):
        changed[random.randrange(len(changed))] = random.choice([0, 1, 127])
    return changed, "array changed"
