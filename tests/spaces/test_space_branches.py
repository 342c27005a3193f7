"""Branches: their making, end, and what is visible on them (seed 8, 9.2)."""

from __future__ import annotations

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.errors import Conflict, Invalid, NotFound
from worm.spaces.results import Branch
from worm.spaces.rows import MAIN
from worm.spaces.space import Space


def test_a_branch_begins_as_its_parent_is_and_goes_its_own_way(space: Space) -> None:
    space.transact([put("a", n=1), put("b", n=1)])
    space.create_branch("dev")
    space.transact([put("a", n=2), put("c", n=2)])
    assert [value(space, entity, branch="dev") for entity in "abc"] == [{"n": 1}, {"n": 1}, None]
    space.transact([change("a", m=3), drop("b"), put("d")], branch="dev")
    assert [value(space, entity, branch="dev") for entity in "abd"] == [{"n": 1, "m": 3}, None, {}]
    assert space.read("b", branch="dev").presence == "deleted"
    assert [value(space, entity) for entity in "abcd"] == [{"n": 2}, {"n": 1}, {"n": 2}, None]
    assert space.read("d").presence == space.read("c", branch="dev").presence == "never"


def test_making_and_ending_a_branch_are_commits_without_revisions(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    space.transact([put("a")])
    made = space.create_branch("dev", session_id="s", local_seq=1)
    space.transact([put("a")], branch="dev")
    ended = space.delete_branch("dev", session_id="s", local_seq=2)
    assert (made.seq, ended.seq) == (2, 4)
    entries = {entry.seq: entry for entry in space.log()}
    assert entries[2].original == {
        "cmd": "/memory/branch/create",
        "name": "dev",
        "parent": MAIN,
        "forkSeq": 1,
        "localSeq": 1,
    }
    assert entries[4].original == {"cmd": "/memory/branch/delete", "name": "dev", "localSeq": 2}
    assert [entries[seq].branch for seq in (1, 2, 3, 4)] == ["main", "dev", "dev", "dev"]
    assert entries[4].resolution == {"seq": 4, "resolvedPendingReads": []}
    assert (backend.touched("dev", 0, 4), backend.touched("dev", 2, 3), backend.touched("dev", 3, 4)) == (
        {"a"},
        {"a"},
        set(),
    )


def test_a_branch_tells_where_it_comes_from_and_its_newest_change(space: Space) -> None:
    assert space.branches() == [Branch("main", None, None, 0, 0, is_active=True)]
    space.transact([put("a")])
    space.transact([put("a")])
    space.create_branch("old", at=1)
    assert space.branch("old") == Branch("old", "main", 1, 3, 3, is_active=True)
    space.create_branch("child", parent="old")
    space.transact([put("a")], branch="old")
    space.transact([put("b")])
    space.delete_branch("child")
    space.delete_branch("old")
    assert space.branches() == [
        Branch("main", None, None, 0, 6, is_active=True),
        Branch("old", "main", 1, 3, 5, is_active=False),
        Branch("child", "old", 3, 4, 4, is_active=False),
    ]
    with pytest.raises(NotFound, match="there is no branch 'nope'"):
        space.branch("nope")


def test_a_branch_can_begin_at_any_past_commit_or_time(room: Room) -> None:
    space = room.open()
    for n in range(5):
        space.transact([put("a", n=n)])
        room.clock.advance(10)
    space.create_branch("second", at=2)
    space.create_branch("first", at=room.clock.now().replace(second=5))
    space.create_branch("none", at=0)
    assert [value(space, "a", branch=name) for name in ("second", "first", "none")] == [{"n": 1}, {"n": 0}, None]
    assert space.branch("first").fork_seq == 1
    with pytest.raises(NotFound, match="not exist yet"):
        space.create_branch("later", at=99)


def test_what_a_branch_did_not_write_comes_from_the_whole_chain_of_parents(space: Space) -> None:
    space.transact([put("root", n=0), put("a", n=0)])  # 1
    space.create_branch("b1")  # 2
    space.transact([change("a", b1=1), put("only1")], branch="b1")  # 3
    space.create_branch("b2", parent="b1")  # 4
    space.transact([change("a", late=1)], branch="b1")  # 5: after the fork
    space.transact([change("a", b2=1)], branch="b2")  # 6
    space.create_branch("b3", parent="b2", at=5)  # 7: before b2 wrote
    assert value(space, "a", branch="b2") == {"n": 0, "b1": 1, "b2": 1}
    assert value(space, "a", branch="b3") == {"n": 0, "b1": 1}
    assert [value(space, entity, branch="b3") for entity in ("root", "only1")] == [{"n": 0}, {}]
    space.transact([change("a", b3=1)], branch="b3")
    assert value(space, "a", branch="b3") == {"n": 0, "b1": 1, "b3": 1}
    assert value(space, "a") == {"n": 0}


@pytest.mark.parametrize("at", range(8))
def test_a_branch_is_read_at_a_past_commit_through_its_parents(space: Space, at: int) -> None:
    space.transact([put("a", n=1)])  # 1
    space.transact([put("a", n=2)])  # 2
    space.create_branch("dev", at=1)  # 3
    space.transact([put("a", n=4)])  # 4
    space.transact([change("a", dev=5)], branch="dev")  # 5
    space.transact([drop("a")], branch="dev")  # 6
    space.transact([change("b")], branch="dev")  # 7
    want = {0: None, 5: {"n": 1, "dev": 5}, 6: None, 7: None}.get(at, {"n": 1})
    assert value(space, "a", branch="dev", at=at) == want
    presence = "empty" if at == 0 else "deleted" if at >= 6 else "present"
    assert space.read("a", branch="dev", at=at).presence == presence


def test_a_branch_forked_before_its_parents_own_fork(space: Space) -> None:
    for n in range(3):
        space.transact([put("a", n=n)])
    space.create_branch("dev")
    space.create_branch("older", parent="dev", at=1)
    assert value(space, "a", branch="older") == {"n": 0}


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_snapshots_of_a_parent_after_the_fork_do_not_count_on_the_branch(room: Room, is_snapshot: bool) -> None:
    space = room.open(snapshot_every=1 if is_snapshot else 100)
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    space.transact([put("a", n=2)])
    space.transact([change("a", dev=1)], branch="dev")
    for reader in (space, room.open()):
        assert value(reader, "a", branch="dev") == {"n": 1, "dev": 1}
        assert value(reader, "a", branch="dev", at=3) == {"n": 1}


def test_a_deleted_branch_can_be_read_and_so_can_its_children(space: Space) -> None:
    space.create_branch("dev")
    space.transact([put("a", n=1)], branch="dev")
    space.create_branch("child", parent="dev")
    space.transact([change("a", m=1)], branch="child")
    space.delete_branch("child")
    space.delete_branch("dev")
    assert value(space, "a", branch="dev") == value(space, "a", branch="child", at=3) == {"n": 1}
    assert value(space, "a", branch="child") == {"n": 1, "m": 1}


def test_a_branch_with_children_that_go_on_is_not_deleted(space: Space) -> None:
    for name, parent in (("dev", ""), ("one", "dev"), ("two", "dev"), ("three", "dev")):
        space.create_branch(name, parent=parent)
    space.delete_branch("three")
    with pytest.raises(Conflict, match="branch 'dev' is needed by branch 'one', branch 'two'"):
        space.delete_branch("dev")
    assert space.seq == 5
    space.delete_branch("one")
    space.delete_branch("two")
    space.delete_branch("dev")


def test_a_deleted_branch_comes_back(room: Room) -> None:
    space = room.open()
    space.create_branch("dev")
    space.transact([put("a", n=1)], branch="dev")
    space.create_branch("child", parent="dev")
    space.delete_branch("child")
    space.delete_branch("dev")
    with pytest.raises(Conflict, match="'child' was forked from branch 'dev', which was deleted"):
        space.undelete_branch("child")
    done = space.undelete_branch("dev", session_id="s", local_seq=1)
    assert space.undelete_branch("dev", session_id="s", local_seq=1).seq == done.seq
    with pytest.raises(Invalid, match="for another transaction"):
        space.delete_branch("dev", session_id="s", local_seq=1)
    *_, entry = space.log()
    assert entry.original == {"cmd": "/memory/branch/undelete", "name": "dev", "localSeq": 1}
    for other in (space, room.open()):
        assert other.branch("dev") == Branch("dev", "main", 0, 1, 2, is_active=True)
        with pytest.raises(Conflict, match="is not deleted"):
            other.undelete_branch("dev")
    space.transact([change("a", m=1)], branch="dev")
    space.undelete_branch("child")
    assert (value(space, "a", branch="dev"), value(space, "a", branch="child")) == ({"n": 1, "m": 1}, {"n": 1})
    with pytest.raises(NotFound, match="there is no branch 'nope'"):
        space.undelete_branch("nope")
    with pytest.raises(Conflict, match="always exists"):
        space.undelete_branch("main")


def test_the_trunk_has_a_name_and_the_empty_name_is_the_same(space: Space) -> None:
    for name in ("main", ""):
        done = space.transact([put("a", n=1)], branch=name)
        assert (done.branch, space.branch(name).name) == ("main", "main")
        seen = space.read("a", branch=name)
        assert (seen.branch, space.ids(branch=name)) == ("main", ["a"])
        space.transact([put("a", n=2)], branch=name, reads=[seen])
        space.create_branch(f"of-{name}", parent=name)
        assert space.branch(f"of-{name}").parent == "main"
        assert space.diff(name, f"of-{name}") == []
        assert space.snapshot("a", branch=name) == 1
        with pytest.raises(Conflict, match="branch 'main' always exists"):
            space.create_branch(name)
        with pytest.raises(Invalid, match="branch 'main' cannot be deleted"):
            space.delete_branch(name)
    assert space.merge("of-main", "main").committed is None
    assert {entry.branch for entry in space.log()} == {"main", "of-main", "of-"}


def test_the_name_of_a_branch_is_used_once(space: Space) -> None:
    space.create_branch("dev")
    with pytest.raises(Conflict, match="exists or was deleted"):
        space.create_branch("dev")
    space.delete_branch("dev")
    with pytest.raises(Conflict, match="exists or was deleted"):
        space.create_branch("dev")
    with pytest.raises(NotFound, match="was deleted"):
        space.delete_branch("dev")
    with pytest.raises(NotFound, match=r"was deleted.*undelete it"):
        space.create_branch("child", parent="dev")
    with pytest.raises(Conflict, match="always exists"):
        space.create_branch(MAIN)
    with pytest.raises(Invalid, match="cannot be deleted"):
        space.delete_branch(MAIN)
    with pytest.raises(NotFound):
        space.create_branch("child", parent="nope")
    for name in ("\x00", "x" * 201):
        with pytest.raises(Invalid):
            space.create_branch(name)
    assert space.seq == 2


def test_making_or_ending_a_branch_again_under_the_same_name_of_a_transaction(space: Space) -> None:
    first = space.create_branch("dev", session_id="s", local_seq=1)
    space.transact([put("a")])
    again = space.create_branch("dev", session_id="s", local_seq=1)
    assert (again.seq, again.is_repeat) == (first.seq, True)
    assert space.create_branch("dev", at=0, session_id="s", local_seq=1).is_repeat
    with pytest.raises(Invalid, match="for another transaction"):
        space.create_branch("dev", at=1, session_id="s", local_seq=1)
    with pytest.raises(Invalid, match="for another transaction"):
        space.delete_branch("dev", session_id="s", local_seq=1)
    ended = space.delete_branch("dev", session_id="s", local_seq=2)
    assert space.delete_branch("dev", session_id="s", local_seq=2).seq == ended.seq
    with pytest.raises(Invalid, match="for another transaction"):
        space.create_branch("dev", session_id="s", local_seq=2)
    assert space.seq == 3


def test_forks_of_forks_have_a_limit(room: Room) -> None:
    space = room.open(branch_depth_max=3)
    parent = MAIN
    for n in range(3):
        space.create_branch(f"b{n}", parent=parent)
        parent = f"b{n}"
    with pytest.raises(Invalid, match="more than 3 forks away"):
        space.create_branch("b3", parent=parent)


def test_a_patch_on_a_branch_of_a_long_history_gets_a_snapshot_there(room: Room) -> None:
    """Replay depth counts what is inherited too."""
    backend = room.backend()
    space = room.space(backend, replay_depth_max=5)
    space.transact([put("a")])
    for n in range(5):
        space.transact([change("a", n=n)])
    assert backend.snapshots(MAIN, ["a"], space.seq) == {}
    space.create_branch("dev")
    space.transact([change("a", dev=1)], branch="dev")
    assert backend.snapshots("dev", ["a"], space.seq)["a"].value == '{"value":{"dev":1,"n":4}}'
