"""The invariants of the root of a page store, from one swap to the next: plain predicates over the current pages and
the new ones, checked before every swap (`root.py`). Each docstring says which damage it prevents. Before the first
swap, there are no branches at all.

A branch is identified by its id: a reset may give its name to another line of history.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from worm.pages.manifest import MAIN, PageBranch, Pages
from worm.store import Invariant


def applied_never_falls(current: Pages, new: Pages) -> bool:
    """The log up to the applied slot may be collected: a process that applied it again would find nothing, and readers
    would search the log for what only layers have."""
    return all(before.slot <= after.slot and before.lsn <= after.lsn for before, after in _same(current, new))


def horizon_never_falls(current: Pages, new: Pages) -> bool:
    """Below the horizon, layers may be gone. A lower horizon would promise states that read as older or empty pages."""
    return all(before.horizon <= after.horizon for before, after in _same(current, new))


def horizon_is_applied(_: Pages, new: Pages) -> bool:
    """The collector drops what no read from the horizon on needs: beyond the applied LSN, that would be everything."""
    return all(branch.horizon <= branch.lsn for branch in new.branches.values())


def compaction_never_falls(current: Pages, new: Pages) -> bool:
    """The epoch decides which of two compactions publishes, and which of their layers are garbage. With an older one,
    the collector would delete layers that are about to be named."""
    return all(before.compaction <= after.compaction for before, after in _same(current, new))


def no_layer_is_named_twice(_: Pages, new: Pages) -> bool:
    """A layer of two branches, or one that is both live and dropped, would be deleted while it is still needed."""
    paths = [layer.path for branch in new.branches.values() for layer in branch.layers]
    paths += [one.path for branch in new.branches.values() for one in branch.dropped]
    return len(paths) == len(set(paths))


def dropped_layers_stay_dropped(current: Pages, new: Pages) -> bool:
    """Dropped layers are deleted by age, without another check of the root: a live layer would disappear."""
    live = {layer.path for branch in new.branches.values() for layer in branch.layers}
    return not any(one.path in live for branch in current.branches.values() for one in branch.dropped)


def layers_leave_by_being_dropped(current: Pages, new: Pages) -> bool:
    """Readers with an older root have a minimum age to finish. A layer that is named nowhere would be collected at
    once."""
    return all(
        {layer.path for layer in before.layers} - {layer.path for layer in after.layers}
        <= {one.path for one in after.dropped}
        for before, after in _same(current, new)
    )


def layers_never_change(current: Pages, new: Pages) -> bool:
    """Objects are immutable, so their descriptions in the root are, too, except for the level, which rises, and the
    filter, which may be removed. Another range of pages or LSNs would hide versions that the layer has."""
    known = {layer.path: layer for branch in current.branches.values() for layer in branch.layers}
    return all(
        before.level <= layer.level
        and (layer.filter is None or layer.filter == before.filter)
        and layer == before.model_copy(update={"level": layer.level, "filter": layer.filter})
        for branch in new.branches.values()
        for layer in branch.layers
        if (before := known.get(layer.path, layer)) is not layer
    )


def layers_hold_applied_lsns(_: Pages, new: Pages) -> bool:
    """A layer with LSNs that are not applied yet would be read twice once they are; one with LSNs of the parent would
    hide what the branch shares. An image has a single LSN: that of its state."""
    return all(
        branch.base < layer.low_lsn <= layer.high_lsn <= branch.lsn
        and (not layer.is_image or layer.low_lsn == layer.high_lsn)
        for branch in new.branches.values()
        for layer in branch.layers
    )


def flushes_begin_where_the_last_one_ended(current: Pages, new: Pages) -> bool:
    """A flush that begins earlier would hold versions that other layers have, perhaps merged with newer ones."""
    for before, after in _same(current, new):
        known = {layer.path for layer in before.layers}
        if any(one.level == 0 and one.low_lsn <= before.lsn for one in after.layers if one.path not in known):
            return False
    return True


def marks_go_up(_: Pages, new: Pages) -> bool:
    """Marks are used to look up times and the horizon: one out of order would raise the horizon too far."""
    return all(
        all(one.ms <= two.ms and one.lsn <= two.lsn and one.slot <= two.slot for one, two in pairwise(branch.marks))
        and all(mark.lsn <= branch.lsn and mark.slot <= branch.slot for mark in branch.marks)
        for branch in new.branches.values()
    )


def main_stays(_: Pages, new: Pages) -> bool:
    """Main has no directory of its own: without it in the root, its log and layers would be collected as garbage."""
    return MAIN in new.branches and new.branches[MAIN].id == "" and new.branches[MAIN].parent is None


def branches_have_ids_of_their_own(_: Pages, new: Pages) -> bool:
    """The id is the directory: two branches with one id would write into each other's log."""
    return len({branch.id for branch in new.branches.values()}) == len(new.branches)


def new_branches_are_empty(current: Pages, new: Pages) -> bool:
    """A branch starts at its fork, with nothing of its own. A reused id would find the log and the layers of the
    earlier branch."""
    known = {branch.id for branch in current.branches.values()}
    return all(
        branch.lsn == branch.base and not (branch.slot or branch.layers or branch.dropped or branch.marks)
        for branch in new.branches.values()
        if branch.id not in known
    )


def forks_never_move(current: Pages, new: Pages) -> bool:
    """Parent and base say what a branch shares: another fork would give it another past."""
    return all((before.parent, before.base) == (after.parent, after.base) for before, after in _same(current, new))


def parents_stay(current: Pages, new: Pages) -> bool:
    """A branch without its parent, or below another one of the same name, would lose what it shares."""
    ids = {name: branch.id for name, branch in current.branches.items()}
    known = {branch.id for branch in current.branches.values()}
    for branch in new.branches.values():
        parent = None if branch.parent is None else new.branches.get(branch.parent)
        if branch.parent is not None and (parent is None or branch.base > parent.lsn):
            return False
        if parent is not None and branch.id in known and parent.id != ids.get(branch.parent or ""):
            return False
    return True


def closing_is_final(current: Pages, new: Pages) -> bool:
    """Its writer was fenced because it closes: if the branch were reopened, nobody could write."""
    return all(after.closing or not before.closing for before, after in _same(current, new))


def pins_never_move(current: Pages, new: Pages) -> bool:
    """The holder of a pin reads its LSN without checking the root again."""
    both = current.pins.keys() & new.pins.keys()
    return all(current.pins[pin_id] == new.pins[pin_id] for pin_id in both)


def forks_and_pins_are_readable(current: Pages, new: Pages) -> bool:
    """A new fork or pin below the horizon, at an LSN that nothing else keeps, would point to pages that may be gone."""
    known = {branch.id for branch in current.branches.values()}
    made = [
        (branch.parent, branch.base) for branch in new.branches.values() if branch.parent and branch.id not in known
    ]
    made += [(pin.branch, pin.lsn) for pin_id, pin in new.pins.items() if pin_id not in current.pins]
    for name, lsn in made:
        owner = new.branches.get(name)
        if owner is None or lsn > owner.lsn or (lsn < owner.horizon and lsn not in current.points(name)):
            return False
    return all(pin.branch in new.branches for pin in new.pins.values())


def _same(current: Pages, new: Pages) -> Iterator[tuple[PageBranch, PageBranch]]:
    """Branches that exist both before and after."""
    known = {branch.id: branch for branch in current.branches.values()}
    for branch in new.branches.values():
        if branch.id in known:
            yield known[branch.id], branch


PAGES: tuple[Invariant[Pages], ...] = (
    applied_never_falls,
    horizon_never_falls,
    horizon_is_applied,
    compaction_never_falls,
    no_layer_is_named_twice,
    dropped_layers_stay_dropped,
    layers_leave_by_being_dropped,
    layers_never_change,
    layers_hold_applied_lsns,
    flushes_begin_where_the_last_one_ended,
    marks_go_up,
    main_stays,
    branches_have_ids_of_their_own,
    new_branches_are_empty,
    forks_never_move,
    parents_stay,
    closing_is_final,
    pins_never_move,
    forks_and_pins_are_readable,
)
