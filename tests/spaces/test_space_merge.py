"""Comparing branches and merging them, with conflicts that say what both did."""

from __future__ import annotations

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.codec.strict_json import JsonObject
from worm.errors import Invalid, NotFound
from worm.spaces.results import BothChanged, MergeConflict
from worm.spaces.rows import MAIN
from worm.spaces.space import Space


@pytest.fixture
def forked(space: Space) -> Space:
    """`a`, `b` and `c` on both."""
    space.transact([put(entity, n=0) for entity in "abc"])
    space.create_branch("dev")
    return space


def _values(space: Space, branch: str = MAIN) -> dict[str, object]:
    return {entity: value(space, entity, branch=branch) for entity in space.ids(branch=branch)}


def test_the_difference_of_two_branches_names_what_is_not_the_same(forked: Space) -> None:
    assert forked.diff(MAIN, "dev") == []
    forked.transact([put("a", n=1), drop("b"), put("x")], branch="dev")
    forked.transact([put("c", n=2), put("x")])
    found = forked.diff(MAIN, "dev")
    assert [(one.id, one.left.presence, one.right.presence) for one in found] == [
        ("a", "present", "present"),
        ("b", "present", "deleted"),
        ("c", "present", "present"),
    ]
    assert (found[0].left.value, found[0].right.value) == ({"value": {"n": 0}}, {"value": {"n": 1}})
    assert [one.id for one in forked.diff("dev", MAIN)] == ["a", "b", "c"]
    assert [one.id for one in forked.diff(MAIN, "dev", at=3)] == ["a", "b", "x"]
    assert forked.diff("dev", "dev") == []


def test_values_are_the_same_only_as_json(forked: Space) -> None:
    forked.transact([put("a", n=0.0), put("b", n=False)], branch="dev")
    assert [one.id for one in forked.diff(MAIN, "dev")] == ["a", "b"]


def test_the_difference_of_branches_with_forks_at_different_times(space: Space) -> None:
    space.transact([put("a", n=0)])
    space.create_branch("one")
    space.transact([put("b", n=0)])
    space.create_branch("two")
    space.transact([put("c", n=0)], branch="two")
    space.create_branch("deep", parent="two")
    assert [one.id for one in space.diff("one", "two")] == ["b", "c"]
    assert [one.id for one in space.diff("one", "deep")] == ["b", "c"]
    assert space.diff("two", "deep") == []
    space.create_branch("before", parent="two", at=1)
    assert [one.id for one in space.diff("two", "before")] == ["b", "c"]


def test_what_one_branch_changed_is_merged_in_one_commit(forked: Space) -> None:
    forked.transact([put("a", n=1), drop("b"), put("x", n=1)], branch="dev")
    forked.transact([put("c", n=2)])
    merged = forked.merge("dev", session_id="s", local_seq=1)
    assert (merged.changed, merged.conflicts) == (("a", "b", "x"), ())
    assert merged.committed is not None
    assert merged.committed.seq == 5
    assert _values(forked) == {"a": {"n": 1}, "b": None, "c": {"n": 2}, "x": {"n": 1}}
    *_, entry = forked.log()
    assert entry.original["merge"] == {"branch": "dev", "policy": "fail"}
    assert entry.branch == MAIN
    again = forked.merge("dev", session_id="s", local_seq=1)
    assert again.committed is not None
    assert (again.committed.seq, again.committed.is_repeat, again.changed) == (5, True, ("a", "b", "x"))
    with pytest.raises(Invalid, match="something else"):
        forked.merge("dev", policy="ours", session_id="s", local_seq=1)


def test_nothing_to_merge_is_no_commit(forked: Space) -> None:
    forked.transact([put("a", n=1)])
    assert forked.merge("dev").committed is None
    forked.transact([put("a", n=1), change("b", n=0)], branch="dev")
    assert forked.merge("dev").committed is None, "the same on both"
    assert forked.seq == 4


def test_what_both_changed_is_a_conflict_that_shows_all_three(forked: Space) -> None:
    forked.transact([put("a", n=1), put("b", n=1)], branch="dev")
    forked.transact([put("a", n=2), drop("c")])
    with pytest.raises(MergeConflict, match="both branches changed 'a'") as conflict:
        forked.merge("dev")
    (one,) = conflict.value.conflicts
    assert [entity.value for entity in (one.base, one.ours, one.theirs)] == [{"value": {"n": n}} for n in (0, 2, 1)]
    assert (one.ours.branch, one.theirs.branch, conflict.value.exit_code) == (MAIN, "dev", 4)
    assert forked.seq == 4
    assert value(forked, "b") == {"n": 0}


@pytest.mark.parametrize(
    ("policy", "want"),
    [("ours", {"a": {"n": 2}, "b": None, "c": {"n": 2}}), ("theirs", {"a": {"n": 1}, "b": {"n": 1}, "c": None})],
)
def test_a_policy_decides_conflicts(forked: Space, policy: str, want: dict[str, object]) -> None:
    forked.transact([put("a", n=1), put("b", n=1), drop("c"), put("x")], branch="dev")
    forked.transact([put("a", n=2), drop("b"), put("c", n=2)])
    merged = forked.merge("dev", policy="ours" if policy == "ours" else "theirs")
    assert [one.id for one in merged.conflicts] == ["a", "b", "c"]
    assert merged.changed == ("x",)
    assert _values(forked) == want | {"x": {}}
    assert forked.merge("dev").committed is None


def test_a_function_decides_conflicts(forked: Space) -> None:
    forked.transact([change("a", theirs=1), put("b", n=1)], branch="dev")
    forked.transact([change("a", ours=1), put("b", n=2)])

    def both(conflict: BothChanged) -> JsonObject | None:
        if conflict.id == "b":
            return None
        ours, theirs = conflict.ours.value, conflict.theirs.value
        assert ours is not None
        assert theirs is not None
        return {"value": {**_object(ours), **_object(theirs)}}

    forked.merge("dev", policy=both)
    assert _values(forked) == {"a": {"n": 0, "ours": 1, "theirs": 1}, "b": None, "c": {"n": 0}}


def _object(document: JsonObject) -> JsonObject:
    found = document["value"]
    assert isinstance(found, dict)
    return found


def test_a_second_merge_brings_only_what_is_new(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.merge("dev")
    forked.transact([put("a", n=2)], branch="dev")
    assert forked.merge("dev").changed == ("a",)
    forked.transact([put("a", n=3)])
    assert forked.merge("dev").committed is None
    assert value(forked, "a") == {"n": 3}
    forked.transact([put("a", n=4)], branch="dev")
    with pytest.raises(MergeConflict):
        forked.merge("dev")


def test_a_conflict_that_was_decided_is_none_the_next_time(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    forked.merge("dev", policy="ours")
    assert forked.merge("dev").committed is None
    forked.transact([put("a", n=3)], branch="dev")
    assert forked.merge("dev").changed == ("a",)
    assert value(forked, "a") == {"n": 3}


def test_catching_up_first_keeps_what_the_branch_changed_before(forked: Space) -> None:
    """The merge in the other direction must not count as having brought the branch's own changes over."""
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("b", n=2)])
    assert forked.merge(MAIN, "dev").changed == ("b",)
    assert _values(forked, "dev") == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 0}}
    forked.transact([put("b", n=5)])
    assert forked.merge("dev").changed == ("a",), "what came from there is no news there"
    assert _values(forked) == {"a": {"n": 1}, "b": {"n": 5}, "c": {"n": 0}}


def test_a_conflict_decided_while_catching_up_is_none_when_merged_back(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    forked.merge(MAIN, "dev", policy="ours")
    assert value(forked, "a", branch="dev") == {"n": 1}
    assert forked.merge("dev").changed == ("a",)
    assert _values(forked) == _values(forked, "dev")


def test_what_cannot_be_merged_is_refused(forked: Space) -> None:
    with pytest.raises(Invalid, match="into itself"):
        forked.merge("dev", "dev")
    with pytest.raises(NotFound):
        forked.merge("nope")
    with pytest.raises(Invalid, match="no policy"):
        forked.merge("dev", policy="mine")  # type: ignore[arg-type]  # that is the mistake
    forked.delete_branch("dev")
    with pytest.raises(NotFound, match="was deleted"):
        forked.merge("dev")
    with pytest.raises(NotFound, match="was deleted"):
        forked.merge(MAIN, "dev")


def test_a_merge_keeps_the_limits_of_a_transaction(room: Room) -> None:
    space = room.open(operations_max=2)
    space.create_branch("dev")
    for entity in "abc":
        space.transact([put(entity)], branch="dev")
    with pytest.raises(Invalid, match="3 operations are more than the 2"):
        space.merge("dev")
    assert space.seq == 4


def test_siblings_can_be_merged(space: Space) -> None:
    space.transact([put("a", n=0)])
    space.create_branch("one")
    space.create_branch("two")
    space.transact([put("x")], branch="one")
    space.transact([put("a", n=1)], branch="two")
    assert space.merge("one", "two").changed == ("x",)
    assert space.merge("two", "one").changed == ("a",)
    assert space.diff("one", "two") == []
