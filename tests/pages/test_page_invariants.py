"""Each invariant of the pages in the root: which change it refuses, and that it is asked before the swap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from worm.clock import Ids, VirtualClock
from worm.pages.invariants import PAGES
from worm.pages.manifest import MAIN, Dropped, Layer, Mark, PageBranch, Pages, Pin
from worm.pages.root import PagesRoot
from worm.store.cas import InvariantBroken
from worm.store.memory import MemoryStore


def layer(path: str, low_lsn: int, high_lsn: int, level: int = 0) -> Layer:
    return Layer(
        path=path,
        level=level,
        low="a",
        high="b",
        low_lsn=low_lsn,
        high_lsn=high_lsn,
        size=1,
        index=0,
        sha256="",
        pages=1,
        versions=1,
        raw=1,
        filter="f",
    )


def pages() -> Pages:
    """Main with a flushed, a merged and a dropped layer; a branch below it with a layer of its own; a pin."""
    main = PageBranch(
        slot=20,
        lsn=50,
        horizon=30,
        compaction=4,
        layers=(layer("merged", 1, 40, 1), layer("flushed", 41, 50)),
        dropped=(Dropped(path="dropped", ms=5),),
        marks=(Mark(ms=1, lsn=30, slot=9), Mark(ms=2, lsn=50, slot=20)),
    )
    side = PageBranch(
        id="S", parent=MAIN, base=40, slot=3, lsn=45, horizon=40, closing=True, layers=(layer("own", 41, 45),)
    )
    pins = {"pin": Pin(branch=MAIN, lsn=10, until=99)}
    return Pages(branches={MAIN: main, "side": side}, pins=pins)


def changed(name: str, **update: object) -> Callable[[Pages], Pages]:
    return lambda now: now.with_branch(name, now.branch(name).model_copy(update=update))


def whole(**update: object) -> Callable[[Pages], Pages]:
    return lambda now: now.model_copy(update=update)


def added(name: str, branch: PageBranch) -> Callable[[Pages], Pages]:
    return lambda now: now.with_branch(name, branch)


def pinned(lsn: int, branch: str = MAIN) -> Callable[[Pages], Pages]:
    return lambda now: now.model_copy(update={"pins": {**now.pins, "new": Pin(branch=branch, lsn=lsn, until=99)}})


def broken_by(change: Callable[[Pages], Pages]) -> list[str]:
    before = pages()
    return [holds.__name__ for holds in PAGES if not holds(before, change(before))]


MERGED, FLUSHED = pages().branch(MAIN).layers
MARKS = pages().branch(MAIN).marks
NEW = PageBranch(id="N", parent=MAIN, base=40, lsn=40, horizon=40)
GONE = Dropped(path="dropped", ms=5)


@pytest.mark.parametrize(
    "change",
    [
        lambda now: now,
        changed(MAIN, slot=21, lsn=60, layers=(MERGED, FLUSHED, layer("new", 51, 60))),
        changed(
            MAIN,
            layers=(layer("both", 1, 50, 1),),
            dropped=(GONE, Dropped(path="merged", ms=9), Dropped(path="flushed", ms=9)),
        ),
        changed(MAIN, layers=(MERGED, FLUSHED.model_copy(update={"level": 1, "filter": None}))),
        changed(MAIN, horizon=50, dropped=()),
        added("new", PageBranch(id="N", parent=MAIN, base=35, lsn=35, horizon=35)),
        added("new", PageBranch(id="N", parent=MAIN, base=10, lsn=10, horizon=10)),  # below the horizon, at a pin
        added("side", PageBranch(id="T", parent=MAIN, base=50, lsn=50, horizon=50)),  # a reset
        whole(branches={MAIN: pages().branch(MAIN)}),
        whole(pins={}),
        pinned(30),
        changed(MAIN, compaction=5),
    ],
)
def test_what_the_code_does_keeps_all_of_them(change: Callable[[Pages], Pages]) -> None:
    assert broken_by(change) == []


REFUSED: list[tuple[Callable[[Pages], Pages], list[str]]] = [
    (changed("side", slot=2), ["applied_never_falls"]),
    (changed("side", lsn=44), ["applied_never_falls", "layers_hold_applied_lsns"]),
    (changed(MAIN, horizon=29), ["horizon_never_falls"]),
    (changed(MAIN, horizon=51), ["horizon_is_applied"]),
    (changed(MAIN, compaction=3), ["compaction_never_falls"]),
    (changed(MAIN, layers=(MERGED, FLUSHED, FLUSHED)), ["no_layer_is_named_twice"]),
    (changed(MAIN, dropped=(GONE, GONE)), ["no_layer_is_named_twice"]),
    (changed(MAIN, dropped=(GONE, Dropped(path="merged", ms=9))), ["no_layer_is_named_twice"]),
    (
        changed(MAIN, dropped=(), layers=(MERGED, FLUSHED, layer("dropped", 1, 50, 1))),
        ["dropped_layers_stay_dropped"],
    ),
    (changed(MAIN, layers=(FLUSHED,)), ["layers_leave_by_being_dropped"]),
    (changed(MAIN, layers=(MERGED, FLUSHED.model_copy(update={"high": "z"}))), ["layers_never_change"]),
    (changed(MAIN, layers=(MERGED.model_copy(update={"level": 0}), FLUSHED)), ["layers_never_change"]),
    (changed(MAIN, layers=(MERGED, FLUSHED.model_copy(update={"filter": "g"}))), ["layers_never_change"]),
    (changed(MAIN, layers=(MERGED, FLUSHED, layer("new", 51, 60))), ["layers_hold_applied_lsns"]),
    (changed(MAIN, layers=(MERGED, FLUSHED, layer("new", 40, 50, 2))), ["layers_hold_applied_lsns"]),
    (
        changed("side", layers=(layer("own", 41, 45), layer("new", 40, 41, 1))),
        ["layers_hold_applied_lsns"],
    ),
    (
        changed(MAIN, slot=21, lsn=60, layers=(MERGED, FLUSHED, layer("new", 50, 60))),
        ["flushes_begin_where_the_last_one_ended"],
    ),
    (changed(MAIN, marks=(MARKS[1], MARKS[0])), ["marks_go_up"]),
    (changed(MAIN, marks=(*MARKS, Mark(ms=3, lsn=51, slot=20))), ["marks_go_up"]),
    (whole(branches={}, pins={}), ["main_stays"]),
    (
        lambda now: added("two", NEW)(added("one", NEW)(now)),
        ["branches_have_ids_of_their_own"],
    ),
    (
        added("new", PageBranch(id="N", parent=MAIN, base=40, lsn=41, horizon=40)),
        ["new_branches_are_empty"],
    ),
    (
        added("new", PageBranch(id="N", parent=MAIN, base=40, lsn=40, slot=1, horizon=40)),
        ["new_branches_are_empty"],
    ),
    (changed("side", base=39), ["forks_never_move"]),
    (added(MAIN, PageBranch(id="N")), ["main_stays", "parents_stay"]),
    (added("new", PageBranch(id="N", parent="lost")), ["parents_stay", "forks_and_pins_are_readable"]),
    (changed("side", closing=False), ["closing_is_final"]),
    (whole(pins={"pin": Pin(branch=MAIN, lsn=11, until=99)}), ["pins_never_move"]),
    (pinned(29), ["forks_and_pins_are_readable"]),
    (pinned(51), ["forks_and_pins_are_readable"]),
    (pinned(45, "lost"), ["forks_and_pins_are_readable"]),
    (
        added("new", PageBranch(id="N", parent=MAIN, base=29, lsn=29, horizon=29)),
        ["forks_and_pins_are_readable"],
    ),
]


@pytest.mark.parametrize(("change", "broken"), REFUSED)
def test_each_invariant_refuses_its_damage(change: Callable[[Pages], Pages], broken: list[str]) -> None:
    assert broken_by(change) == broken


def test_every_invariant_has_a_case_of_its_own() -> None:
    assert {broken[0] for _, broken in REFUSED} >= {holds.__name__ for holds in PAGES}


def test_they_are_asked_before_every_swap_of_the_stored_root() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    root = PagesRoot(store, "main", clock=clock, ids=ids)
    with pytest.raises(InvariantBroken, match="new branches are empty"):
        root.create(pages())
    assert root.find() is None
    assert root.create(Pages(branches={MAIN: PageBranch(compaction=4)}))
    before = [listed.etag for listed in store.list("")]
    with pytest.raises(InvariantBroken, match="compaction never falls"):
        root.change(changed(MAIN, compaction=3))
    with pytest.raises(InvariantBroken, match="boundary never falls"):
        root._file.update(lambda found: found and replace(found, root=replace(found.root, boundary=-1)))
    assert [listed.etag for listed in store.list("")] == before
    assert root.change(changed(MAIN, compaction=5)) == root.known() == root.read()
