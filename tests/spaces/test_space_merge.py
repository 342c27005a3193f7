"""Comparing branches and merging them, with conflicts that say what both did."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.errors import Invalid, NotFound
from worm.formats.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.spaces.merging import MergePlan, Policy, combined
from worm.spaces.results import BothChanged, BranchMoved, MergeConflict, ReadConflict
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
    record = entry.original["merge"]
    assert isinstance(record, dict)
    assert {**record, "id": ""} == {
        "branch": "dev",
        "policy": "fail",
        "id": "",
        "at": 4,
        "last": True,
        "previous": None,
        "knows": {"": 4, "dev": 4},
    }
    assert entry.branch == "main"
    again = forked.merge("dev", session_id="s", local_seq=1)
    assert again.committed is not None
    assert (again.committed.seq, again.committed.is_repeat, again.changed) == (5, True, ("a", "b", "x"))
    with pytest.raises(Invalid, match="for another transaction"):
        forked.merge("dev", policy="ours", session_id="s", local_seq=1)


def test_a_branch_that_did_not_change_is_no_commit(forked: Space) -> None:
    forked.transact([put("a", n=1)])
    assert not forked.plan_merge("dev").is_needed
    assert forked.merge("dev").committed is None
    assert forked.commit_merge(forked.plan_merge("dev")) is None
    assert forked.seq == 3


def test_a_merge_that_changes_nothing_is_recorded_and_does_not_conflict_with_itself(forked: Space) -> None:
    forked.transact([put("a", n=1)])
    forked.transact([put("a", n=1), change("b", n=0)], branch="dev")
    merged = forked.merge("dev")
    assert (merged.committed is not None, merged.changed, merged.conflicts) == (True, (), ())
    assert forked.merge("dev").committed is None, "that is known now"
    forked.transact([put("a", n=2)])
    assert forked.merge("dev").committed is None
    forked.transact([put("b", n=9)], branch="dev")
    assert forked.merge("dev").changed == ("b",), "`a` was the same on both, and only main has changed it since"


def test_what_main_changed_before_the_last_merge_is_not_lost_to_a_later_change(forked: Space) -> None:
    """The branch never saw it, and no merge decided it."""
    forked.transact([put("a", n=1)])
    forked.transact([put("b", n=1)], branch="dev")
    assert forked.merge("dev").changed == ("b",)
    forked.transact([put("a", n=2)], branch="dev")
    with pytest.raises(MergeConflict, match="'a'"):
        forked.merge("dev")


def test_what_both_changed_is_a_conflict_that_shows_all_three(forked: Space) -> None:
    forked.transact([put("a", n=1), put("b", n=1)], branch="dev")
    forked.transact([put("a", n=2), drop("c")])
    with pytest.raises(MergeConflict, match="both branches changed 'a'") as conflict:
        forked.merge("dev")
    (one,) = conflict.value.conflicts
    assert [entity.value for entity in (one.base, one.ours, one.theirs)] == [{"value": {"n": n}} for n in (0, 2, 1)]
    assert (one.ours.branch, one.theirs.branch, conflict.value.exit_code) == ("main", "dev", 4)
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


def test_a_conflict_that_was_decided_is_none_until_the_branch_changes_it_again(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    forked.merge("dev", policy="ours")
    assert forked.merge("dev").committed is None
    forked.transact([put("a", n=3)], branch="dev")
    with pytest.raises(MergeConflict):
        forked.merge("dev")
    assert value(forked, "a") == {"n": 2}
    assert forked.merge("dev", policy="theirs").committed is not None
    forked.transact([put("a", n=4)], branch="dev")
    assert forked.merge("dev").changed == ("a",), "both had the same"


@pytest.mark.parametrize(("source", "target"), [("dev", "main"), ("main", "dev")])
@pytest.mark.parametrize("first", ["fields", "fields-ours", "fields-theirs"])
def test_what_the_other_side_changed_survives_the_second_merge(
    space: Space, source: str, target: str, first: Policy
) -> None:
    space.transact([put("f", a=0, b=0)])
    space.create_branch("dev")
    space.transact([put("f", a=1, b=0)], branch=target)
    space.transact([put("f", a=0, b=1)], branch=source)
    space.merge(source, target, first)
    assert value(space, "f", branch=target) == {"a": 1, "b": 1}
    space.transact([put("f", a=0, b=2)], branch=source)
    with pytest.raises(MergeConflict):
        space.merge(source, target)
    space.merge(source, target, "fields")
    assert value(space, "f", branch=target) == {"a": 1, "b": 2}


def test_a_delete_of_what_came_from_the_other_side_is_brought_back(forked: Space) -> None:
    forked.transact([put("new", n=1)])
    forked.merge("main", "dev")
    forked.transact([drop("new")], branch="dev")
    assert forked.merge("dev").changed == ("new",)
    assert not forked.read("new").exists
    forked.transact([put("other", n=1)], branch="dev")
    forked.merge("dev")
    forked.transact([drop("other")])
    assert forked.merge("main", "dev").changed == ("other",)
    assert not forked.read("other", branch="dev").exists


def test_an_undo_on_one_side_is_no_conflict_with_older_merges(space: Space) -> None:
    space.transact([put("f", a=0, b=0, c=0)])
    space.create_branch("dev")
    space.transact([put("f", a=1, b=0, c=0)], branch="dev")
    space.merge("dev")
    space.transact([put("f", a=0, b=2, c=0)])
    space.transact([put("f", a=1, b=0, c=3)], branch="dev")
    space.merge("main", "dev", "fields")
    assert value(space, "f", branch="dev") == {"a": 0, "b": 2, "c": 3}
    space.merge("dev", policy="fields")
    assert value(space, "f") == {"a": 0, "b": 2, "c": 3}


def test_what_was_merged_by_way_of_another_branch_is_known(space: Space) -> None:
    space.transact([put("f", a=0)])
    space.create_branch("dev")
    space.transact([put("f", a=1)], branch="dev")
    space.create_branch("sub", parent="dev")
    space.merge("dev")
    space.transact([put("f", a=0)])  # an undo
    space.transact([put("x", n=1)], branch="sub")
    assert space.merge("sub").changed == ("x",)
    assert value(space, "f") == {"a": 0}


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
    with pytest.raises(Invalid, match="not a merge policy"):
        forked.merge("dev", policy="mine")  # type: ignore[arg-type]  # that is the mistake
    forked.delete_branch("dev")
    with pytest.raises(NotFound, match="was deleted"):
        forked.merge("dev")
    with pytest.raises(NotFound, match="was deleted"):
        forked.merge(MAIN, "dev")


def test_siblings_can_be_merged(space: Space) -> None:
    space.transact([put("a", n=0)])
    space.create_branch("one")
    space.create_branch("two")
    space.transact([put("x")], branch="one")
    space.transact([put("a", n=1)], branch="two")
    assert space.merge("one", "two").changed == ("x",)
    assert space.merge("two", "one").changed == ("a",)
    assert space.diff("one", "two") == []


def test_what_came_by_way_of_a_third_branch_is_known(space: Space) -> None:
    space.transact([put("a", n=0)])
    space.create_branch("dev")
    space.transact([put("a", n=1)], branch="dev")
    space.merge("dev")
    space.create_branch("release")
    space.transact([put("a", n=2)], branch="dev")
    assert space.merge("dev", "release").changed == ("a",)
    assert value(space, "a", branch="release") == {"n": 2}


def test_what_was_decided_on_a_third_branch_is_not_decided_again(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    forked.merge("dev", policy="ours")
    forked.create_branch("release")
    assert forked.plan_merge("dev", "release").values == {}
    forked.transact([put("a", n=3)], branch="dev")
    assert [one.id for one in forked.plan_merge("dev", "release").conflicts] == ["a"], "what was decided is not lost"


@pytest.mark.parametrize(("branch", "into"), [("one", "two"), ("two", "one")])
def test_a_plan_for_a_branch_that_was_deleted_since_is_refused(space: Space, branch: str, into: str) -> None:
    for name in ("one", "two"):
        space.create_branch(name)
        space.transact([put(name)], branch=name)
    plan = space.plan_merge(branch, into)
    space.delete_branch("one")
    with pytest.raises(NotFound, match="branch 'one' was deleted"):
        space.commit_merge(plan)


def test_a_plan_writes_nothing_and_is_refused_once_something_of_it_changed(forked: Space) -> None:
    forked.transact([put("a", n=1), put("b", n=1)], branch="dev")
    plan = forked.plan_merge("dev")
    assert (plan.branch, plan.into, plan.at, plan.conflicts, plan.decided) == ("dev", "main", 3, (), {})
    assert plan.changes == {"a": {"value": {"n": 1}}, "b": {"value": {"n": 1}}}
    assert forked.seq == 3
    forked.transact([put("c", n=5)])
    forked.transact([put("x", n=5)], branch="dev")
    done = forked.commit_merge(plan, about={"actor": "ann"}, merge_id="m1")
    assert done is not None, "what changed since is no part of it"
    *_, entry = forked.log()
    assert entry.original["about"] == {"actor": "ann"}
    assert isinstance(entry.original["merge"], dict)
    assert (entry.original["merge"]["id"], entry.original["merge"]["at"]) == ("m1", 3)
    assert forked.plan_merge("dev").changes == {"x": {"value": {"n": 5}}}, "counted from the plan, not from the commit"


@pytest.mark.parametrize("side", ["main", "dev"])
def test_a_plan_that_is_out_of_date_is_refused(forked: Space, side: str) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    plan = forked.plan_merge("dev")
    forked.transact([put("a", n=7)], branch=side)
    with pytest.raises(ReadConflict) as conflict:
        forked.commit_merge(plan)
    assert [(one.id, one.branch, one.found) for one in conflict.value.stale] == [("a", side, 4)]
    assert forked.seq == 4


def test_a_merge_is_planned_again_if_somebody_was_quicker(room: Room) -> None:
    space, other = room.open(), room.open()
    space.transact([put("a", n=0)])
    space.create_branch("dev")
    space.transact([put("a", n=1)], branch="dev")
    space.transact([put("a", n=2)])
    asked: list[JsonValue] = []

    def decide(conflict: BothChanged) -> JsonObject | None:
        if not asked:
            other.transact([put("a", n=3)])
        assert conflict.ours.value is not None
        asked.append(conflict.ours.value["value"])
        return conflict.ours.value

    assert space.merge("dev", policy=decide).committed is not None
    assert asked == [{"n": 2}, {"n": 3}]
    assert value(space, "a") == {"n": 3}


def test_an_undecided_plan_is_not_committed(forked: Space) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    plan = forked.plan_merge("dev")
    assert [one.id for one in plan.undecided] == ["a"]
    with pytest.raises(MergeConflict, match="both branches changed 'a'"):
        forked.commit_merge(plan)
    forked.commit_merge(dataclasses.replace(plan, decided={"a": {"value": {"n": 9}}}))
    assert value(forked, "a") == {"n": 9}
    with pytest.raises(Invalid, match="not part of the merge"):
        forked.commit_merge(plan_of(forked), only=["nope"])


def plan_of(space: Space) -> MergePlan:
    space.transact([put("b", n=4)], branch="dev")
    return space.plan_merge("dev")


def test_a_repeated_merge_says_the_same_as_the_first_time(forked: Space) -> None:
    forked.transact([put("a", n=1), put("b", n=1)], branch="dev")
    forked.transact([put("a", n=2)])
    call: dict[str, Any] = {"branch": "dev", "policy": "theirs", "about": {"why": "x"}}
    call |= {"session_id": "s", "local_seq": 1}
    first = forked.merge(**call)
    forked.transact([put("b", n=5), put("c", n=5)], branch="dev")
    again = forked.merge(**call)
    assert first.committed is not None
    assert again.committed == dataclasses.replace(first.committed, is_repeat=True)
    assert first.changed == again.changed == ("b",)
    others: list[dict[str, Any]] = [{"policy": "ours"}, {"about": {"why": "y"}}, {"about": None}, {"into": "x"}]
    for other in others:
        with pytest.raises(Invalid, match="for another transaction"):
            forked.merge(**call | other)


BASE = '{"a": 1, "deep": {"x": 1, "y": [1, 2]}, "gone": 1}'


@pytest.mark.parametrize(
    ("ours", "theirs", "want", "paths"),
    [
        ('{"a": 2}', '{"b": 3}', '{"a": 2, "b": 3}', []),
        ('{"deep": {"x": 2, "y": [1, 2]}}', '{"deep": {"x": 1, "y": []}}', '{"deep": {"x": 2, "y": []}}', []),
        ('{"gone": null}', '{"a": 5}', '{"a": 5, "gone": null}', []),
        ('{"a": 2}', '{"a": 3}', '{"a": 2}', ["/a"]),
        ('{"a": 1.0}', '{"a": true}', '{"a": 1.0}', ["/a"]),
        ('{"deep": {"x": 1, "y": [1]}}', '{"deep": {"x": 1, "y": [2]}}', '{"deep": {"x": 1, "y": [1]}}', ["/deep/y"]),
        ('{"deep": 5}', '{"deep": {"x": 2, "y": [1, 2]}}', '{"deep": 5}', ["/deep"]),
        ('{"gone": null}', '{"gone": 2}', '{"gone": null}', ["/gone"]),
        ('{"n/~": {"p": 1}}', '{"n/~": {"p": 2, "q": 1}}', '{"n/~": {"p": 1, "q": 1}}', ["/n~1~0/p"]),
    ],
)
def test_fields_are_combined(ours: str, theirs: str, want: str, paths: list[str]) -> None:
    """Each is what a side makes of the base; null stands for a field that is gone."""

    def made(text: str) -> JsonObject:
        fields = {**loads_own(BASE.encode(), ""), **loads_own(text.encode(), "")}
        return {name: value for name, value in fields.items() if value is not None}

    base = made("{}")
    found, places = combined(base, made(ours), made(theirs))
    assert (dumps(found), places) == (dumps(made(want)), paths)
    mirrored, places = combined(base, made(theirs), made(ours), takes_theirs=True)
    assert (dumps(mirrored), places) == (dumps(made(want)), paths)


def test_the_policy_fields_takes_what_only_one_side_changed(forked: Space) -> None:
    forked.transact([change("a", theirs=1), put("b", n=1)], branch="dev")
    forked.transact([change("a", ours=1)])
    merged = forked.merge("dev", policy="fields")
    assert (merged.changed, [one.id for one in merged.conflicts]) == (("b",), ["a"])
    assert _values(forked)["a"] == {"n": 0, "ours": 1, "theirs": 1}


def test_the_same_field_or_a_delete_is_left_to_a_side(forked: Space) -> None:
    forked.transact([put("a", n=1, dev=1), drop("b"), put("new", n=1)], branch="dev")
    forked.transact([put("a", n=2, main=1), put("b", n=2), put("new", n=2)])
    with pytest.raises(MergeConflict, match=r"'a' \(/value/n\), 'b', 'new' \(/value/n\)"):
        forked.merge("dev", policy="fields")
    plan = forked.plan_merge("dev", policy="fields-theirs")
    found = {one: None if value is None else value["value"] for one, value in plan.decided.items()}
    assert found == {"a": {"n": 1, "dev": 1, "main": 1}, "b": None, "new": {"n": 1}}
    forked.merge("dev", policy="fields-ours")
    assert _values(forked) == {"a": {"n": 2, "dev": 1, "main": 1}, "b": {"n": 2}, "c": {"n": 0}, "new": {"n": 2}}


def _wanted(base: Any, ours: Any, theirs: Any, policy: str) -> Any:
    """What a merge gives, as git would have it; "conflict" where it is refused."""
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    side = {"ours": ours, "fields-ours": ours, "theirs": theirs, "fields-theirs": theirs}.get(policy)
    if policy in ("fail", "ours", "theirs") or None in (ours, theirs):
        return "conflict" if side is None and policy in ("fail", "fields") else side
    result = {}
    for name in "abc":
        old = (base or {}).get(name)
        if theirs[name] in (old, ours[name]):
            result[name] = ours[name]
        elif ours[name] == old:
            result[name] = theirs[name]
        elif side is None:
            return "conflict"
        else:
            result[name] = side[name]
    return result


@pytest.mark.parametrize("seed", range(12))
def test_random_merges_back_and_forth_are_those_of_a_version_control(space: Space, seed: int) -> None:
    random = Random(seed)
    space.transact([put("t", a=0, b=0, c=0)])
    space.create_branch("dev")
    now: dict[str, Any] = {"main": {"a": 0, "b": 0, "c": 0}, "dev": {"a": 0, "b": 0, "c": 0}}
    base: Any = dict(now["main"])
    for _ in range(30):
        if random.random() < 0.6:
            branch = random.choice(("main", "dev"))
            if now[branch] is not None and random.random() < 0.15:
                space.transact([drop("t")], branch=branch)
                now[branch] = None
            else:
                now[branch] = {**(now[branch] or {"a": 0, "b": 0, "c": 0}), random.choice("abc"): random.randrange(3)}
                space.transact([put("t", **now[branch])], branch=branch)
            continue
        source, target = random.sample(("main", "dev"), 2)
        policy: Any = random.choice(("fail", "ours", "theirs", "fields", "fields-ours", "fields-theirs"))
        wanted = _wanted(base, now[target], now[source], policy)
        if wanted == "conflict":
            with pytest.raises(MergeConflict):
                space.merge(source, target, policy)
            continue
        space.merge(source, target, policy)
        now[target], base = wanted, now[source]
        assert value(space, "t", branch=target) == wanted
        assert value(space, "t", branch=source) == now[source]


def test_two_merges_that_cross_are_not_both_committed(forked: Space) -> None:
    """Neither would know what the other took. The next merge then took a stale value for a change of its own, and the
    newer one was lost."""
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("b", n=1)])
    up, down = forked.plan_merge("dev", MAIN, "fail"), forked.plan_merge(MAIN, "dev", "fail")
    forked.commit_merge(up)
    with pytest.raises(BranchMoved):
        forked.commit_merge(down)
    forked.merge(MAIN, into="dev")
    assert _values(forked) == _values(forked, "dev")
    forked.transact([put("a", n=2)], branch="dev")
    again = forked.merge(MAIN, into="dev", policy="theirs")
    assert (again.changed, again.conflicts) == ((), ())
    assert value(forked, "a", branch="dev") == {"n": 2}


def test_a_merge_that_crosses_another_is_planned_again(forked: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    forked.transact([put("a", n=1)], branch="dev")
    forked.transact([put("b", n=1)])
    plan_merge, crossed = forked.plan_merge, list[int]()

    def crossing(branch: str, into: str, policy: Policy) -> MergePlan:
        plan = plan_merge(branch, into, policy)
        if not crossed:
            crossed.append(plan.at)
            forked.commit_merge(plan_merge("dev", MAIN, "fail"))
        return plan

    monkeypatch.setattr(forked, "plan_merge", crossing)
    assert forked.merge(MAIN, into="dev").changed == ("b",)
    assert _values(forked) == _values(forked, "dev")
