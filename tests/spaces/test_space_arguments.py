"""Every argument of every public method, with values of the wrong type: `Invalid`, never an error of Python's own, and
nothing is written. And positions: a number, a datetime or text, in every `at=` and `after=`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.spaces.space_room import Room, put, value
from worm.errors import Invalid, NotFound, WormError
from worm.spaces.opening import open_space
from worm.spaces.space import Space

HASH = "0" * 64
SOUND: dict[str, dict[str, Any]] = {
    "transact": {"ops": [put("a")], "session_id": "s", "local_seq": 900},
    "read": {"id": "a"},
    "read_many": {"ids": ["a"]},
    "recall": {"id": "a", "at": 1},
    "ids": {},
    "log": {},
    "create_branch": {"name": "new", "session_id": "s", "local_seq": 901},
    "delete_branch": {"name": "dev", "session_id": "s", "local_seq": 902},
    "undelete_branch": {"name": "dev", "session_id": "s", "local_seq": 903},
    "branch": {"name": "dev"},
    "branches": {},
    "diff": {"left": "main", "right": "dev"},
    "plan_merge": {"branch": "dev"},
    "commit_merge": {"plan": None, "session_id": "s", "local_seq": 904},
    "merge": {"branch": "dev", "session_id": "s", "local_seq": 905},
    "apart": {"known": 0},
    "fork": {"branch": "dev", "at": 1},
    "changed": {"branch": "dev", "after": 0, "upto": 1},
    "snapshot": {},
    "maintain": {},
    "gc": {},
    "put_blob": {"data": b"x", "session_id": "s", "local_seq": 906},
    "blob": {"hash": HASH},
    "read_blob": {"hash": HASH},
    "stream_blob": {"hash": HASH},
    "gc_blobs": {},
    "verify": {},
    "repair": {},
    "stat": {},
}
"""A call that would be right; the arguments that are not named here have defaults."""
WRONG: list[Any] = [3, -1, 1.5, True, "", "x", "\x00", "\ud800", b"x", None, [], [3], ["x", 3], {}, {1: 2}, {"a": {3}}]
WRONG += [object(), lambda: 3, datetime(2026, 1, 1), timedelta(days=-1), 10**30, range(2)]  # noqa: DTZ001  # that is wrong


def _methods() -> Iterator[str]:
    for name, _ in inspect.getmembers(Space, inspect.isfunction):
        if not name.startswith("_") and name != "close":
            yield name


def _arguments(method: str) -> list[str]:
    return [name for name in inspect.signature(getattr(Space, method)).parameters if name != "self"]


def test_every_method_is_here() -> None:
    assert set(_methods()) == set(SOUND)


@pytest.mark.parametrize("method", sorted(SOUND))
def test_wrong_arguments_are_invalid(room: Room, method: str) -> None:
    """An error of ours, or the answer if the value happens to be right."""
    space = room.open()
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    space.transact([put("a", n=2)], branch="dev")
    for argument in _arguments(method):
        for wrong in WRONG:
            sound = SOUND[method] | ({"plan": space.plan_merge("dev")} if method == "commit_merge" else {})
            with suppress(WormError):
                if argument == "ids" and method == "snapshot":
                    space.snapshot(wrong)
                else:
                    found = getattr(space, method)(**sound | {argument: wrong})
                    _ = list(found) if isinstance(found, Iterator) else found
    assert value(space, "a", at=1) == {"n": 1}


CALLS: list[Callable[[Any], object]] = [
    lambda space: space.put_blob("text"),
    lambda space: space.put_blob(7),
    lambda space: space.put_blob([1, 2]),
    lambda space: space.put_blob({"a": 1}),
    lambda space: space.put_blob(b"", content_type=3),
    lambda space: space.put_blob(b"", metadata="x"),
    lambda space: space.put_blob(b"", metadata={"x": {1}}),
    lambda space: space.read(7),
    lambda space: space.read_many("ab"),
    lambda space: space.read("a", at=True),
    lambda space: space.read("a", at="yesterday"),
    lambda space: space.recall("a", "1"),
    lambda space: space.transact("x"),
    lambda space: space.transact(3),
    lambda space: space.transact([put("a")], reads=[3]),
    lambda space: space.transact([put("a")], reads=3),
    lambda space: space.transact([put("a")], about="x"),
    lambda space: space.transact([put("a")], about={"x": object()}),
    lambda space: space.merge(3),
    lambda space: space.merge("dev", policy=3),
    lambda space: space.merge("dev", policy=lambda _: 3),
    lambda space: space.commit_merge(3),
    lambda space: space.commit_merge(space.plan_merge("dev", policy="ours"), only="a"),
    lambda space: space.commit_merge(space.plan_merge("dev"), is_last=1),
    lambda space: space.commit_merge(space.plan_merge("dev"), merge_id=3),
    lambda space: space.log(limit="x"),
    lambda space: space.log(limit=True),
    lambda space: space.log(after=True),
    lambda space: space.gc(keep="x"),
    lambda space: space.maintain(at_least="x"),
    lambda space: space.gc_blobs(older_than=3),
    lambda space: space.stream_blob("x"),
    lambda space: Space(space._backend, {"operations_max": 3}),  # type: ignore[arg-type]  # that is the mistake
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_mistakes_are_told_at_once(room: Room, number: int) -> None:
    space = room.open()
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    space.transact([put("a", n=2)], branch="dev")
    space.transact([put("a", n=3)])
    with pytest.raises(Invalid):
        CALLS[number](space)
    assert (space.seq, space._backend.blobs()) == (4, [])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"url": 3}, {"url": None}, {"name": 3}, {"name": "a/b"}, {"config": {}}, {"create": "yes"}),
        *({"endpoint_url": 3}, {"clock": 3}, {"ids": 3}),
    ],
)
@pytest.mark.parametrize("url", ["sqlite://{}/new", "{}/new"])
def test_a_space_is_not_opened_with_wrong_arguments(tmp_path: Path, url: str, wrong: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"url": url.format(tmp_path), "name": "main"}
    with pytest.raises(Invalid):
        open_space(**sound | wrong)
    assert list(tmp_path.iterdir()) == []


def test_any_bytes_can_be_a_blob(space: Space) -> None:
    first = space.put_blob(b"abc")
    assert space.put_blob(bytearray(b"abc")) == space.put_blob(memoryview(b"abc")) == first
    assert space.put_blob([b"a", bytearray(b"bc")]) == first


def test_a_position_is_a_number_a_time_or_text(room: Room) -> None:
    space = room.open()
    moments = []
    for n in range(1, 4):
        room.clock.advance(60)
        moments.append(room.clock.now())
        space.transact([put("a", n=n)])
    second = moments[1]
    places: list[Any] = [
        2,
        "2",
        second,
        second.isoformat(),
        second.replace(tzinfo=None).isoformat(),
        second.isoformat() + "",
    ]
    places += [second.astimezone(timezone(timedelta(hours=2))), second + timedelta(seconds=59)]
    for at in places:
        assert value(space, "a", at=at) == {"n": 2}
        assert space.read_many(["a"], at=at)["a"].at == 2
        assert [entry.seq for entry in space.log(after=at)] == [3]
        assert space.ids(at=at) == ["a"]
        assert space.diff("main", "main", at=at) == []
    space.create_branch("dev", at=second.isoformat())
    assert space.branch("dev").fork_seq == 2
    assert value(space, "a", at="2025-12-31") is None
    for late in (5, "5"):
        for call in (
            lambda at: space.read("a", at=at),
            lambda at: space.ids(at=at),
            lambda at: space.log(after=at),
            lambda at: space.diff("", "dev", at=at),
            lambda at: space.create_branch("x", at=at),
            lambda at: space.snapshot("a", at=at),
            lambda at: space.recall("a", int(at)),
        ):
            with pytest.raises(NotFound, match="commit 5 does not exist yet; the newest is 4"):
                call(late)
    assert list(space.log(after=datetime(2999, 1, 1, tzinfo=UTC))) == []
