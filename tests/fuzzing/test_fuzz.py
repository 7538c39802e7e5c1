"""A fixed list of hostile inputs per format and surface; `make fuzz` tries many more (docs/trust.md)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fuzzing import campaign, surfaces
from fuzzing.inputs import MARK, Mutator
from fuzzing.judge import Outcome, Signature, compared, judged
from fuzzing.seeds import SEEDS

INPUTS = 25


@pytest.mark.parametrize("name", [seed.name for seed in SEEDS])
def test_hostile_files(tmp_path: Path, name: str) -> None:
    tally = campaign.run(tmp_path, range(INPUTS), [name])
    assert tally.bad == []
    assert sum(tally.kinds.values()) == INPUTS


@pytest.mark.parametrize("name", surfaces.SURFACES)
def test_hostile_surfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip("dash" if name == "dashboard" else "gpuscope")
    monkeypatch.setenv("GPUSCOPE_STORE", "")  # as it was, afterwards
    tally = surfaces.run(name, tmp_path, range(INPUTS))
    assert tally.bad == []
    assert sum(tally.kinds.values()) == INPUTS


def test_pages_and_tiles_of_the_dashboard_are_reached(tmp_path: Path) -> None:
    """A request that is refused for its address alone tries nothing."""
    pytest.importorskip("dash")
    make = surfaces.SURFACES["dashboard"](tmp_path)
    made = [make(Random(f"reached {number}")) for number in range(200)]
    read = {what for what, act in made if what.startswith("GET") and judged(act).kind == "read"}
    assert {"GET /", "GET /advice", "GET /pipeline"} <= read
    assert any(what.endswith("/cells") for what in read)


def test_an_input_is_the_same_for_the_same_number(tmp_path: Path) -> None:
    """Whatever was made before it, and wherever."""
    seed = next(seed for seed in SEEDS if seed.name == "kineto")
    one, other = Mutator(seed, tmp_path / "a"), Mutator(seed, tmp_path / "b")
    other.input(3)
    assert one.input(7).path.read_bytes() == other.input(7).path.read_bytes()


def _failing() -> Outcome:
    raise KeyError("broken on purpose")


def _endless() -> Outcome:
    while True:
        Random(0).random()


def test_the_judge_sees_what_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that can't find anything finds nothing."""
    monkeypatch.setattr("fuzzing.judge.WALL_SECONDS", 1)
    assert judged(_failing).why.startswith("KeyError")
    assert judged(_endless).is_bad
    whole = Signature({"device_events": 3}, "[3]", frozenset(), False)
    less = Signature({"device_events": 2}, "[2]", frozenset(), False)
    assert compared(less, whole, is_edit=False).is_bad
    assert compared(less, whole, is_edit=True) == Outcome("read")
    told = Signature({"device_events": 2}, "[2]", frozenset({("bad_time", 1)}), False)
    assert compared(told, whole, is_edit=False).kind == "told"
    assert compared(Signature({}, "[]", frozenset(), False), whole, is_edit=True).is_bad


def test_a_program_in_a_pickle_would_be_seen(tmp_path: Path) -> None:
    """The hostile pickles of the list do run where a pickle is loaded carelessly."""
    import pickle

    seed = next(seed for seed in SEEDS if seed.name == "flight recorder")
    mutator = Mutator(seed, tmp_path)
    programs = [made for number in range(60) if (made := mutator.input(number)).what == "program in a pickle"][:1]
    assert programs
    for number in range(60):
        made = mutator.input(number)
        if made.what == "program in a pickle" and b"builtins\nexec" in made.path.read_bytes():
            pickle.loads(made.path.read_bytes())  # its own: it makes an empty file here
            break
    assert (tmp_path / MARK).exists()
