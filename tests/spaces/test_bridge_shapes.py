"""Between a space and its documents: what a commit says of them, and the file that says which commits they have."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from worm.clock import iso_millis
from worm.errors import Corrupt
from worm.formats.strict_json import JsonObject
from worm.spaces.bridge.applied import Applied, Run
from worm.spaces.bridge.documents import steps_of
from worm.spaces.results import LogEntry
from worm.spaces.rows import MAIN, TRUNK, CommitRow
from worm.spaces.space import Space
from worm.spaces.transacting import same_record

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _entry(branch: str, operations: object) -> LogEntry:
    return LogEntry(7, branch, "s", 1, cast(JsonObject, {"operations": operations}), {}, NOW)


class Past:
    """A space whose documents all are the same."""

    def read(self, entity: str, *, at: int) -> Any:
        return type("Entity", (), {"value": {"read": entity, "at": at}})


SPACE = cast(Space, Past())


def test_a_commit_on_a_branch_says_nothing_of_the_documents() -> None:
    """They are those of main: a draft would be in production before anybody merged it."""
    operations = [{"op": "set", "id": "Account/a", "value": {"n": 1}}]
    assert list(steps_of(_entry(TRUNK, operations), SPACE)) == ["Account/a"]
    assert steps_of(_entry("draft", operations), SPACE) == {}
    assert steps_of(_entry(TRUNK, None), SPACE) == {}


def test_the_document_after_a_patch_is_what_the_space_has_and_not_the_patch() -> None:
    operations = [
        {"op": "patch", "id": "Account/a", "value": [{"op": "add", "path": "/n", "value": 1}]},
        {"op": "delete", "id": "Account/b"},
        {"op": "set", "id": "Account/c", "value": {"n": 1}},
    ]
    steps = steps_of(_entry(TRUNK, operations), SPACE)
    assert {entity: step.document for entity, step in steps.items()} == {
        "Account/a": {"read": "Account/a", "at": 7},
        "Account/b": None,
        "Account/c": {"n": 1},
    }


GOOD: dict[str, object] = {"version": 1, "applied": 3, "revision": 2, "runs": {"r": {"after": 1, "since": "x"}}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"applied": "3"},
        {"applied": None},
        {"revision": "2"},
        {"runs": []},
        {"runs": {"r": 5}},
        {"runs": {"r": {"after": "1"}}},
    ],
)
def test_a_file_that_does_not_say_what_is_applied_is_corrupt(wrong: dict[str, object]) -> None:
    """It counts as none then, and all commits are applied again."""
    assert Applied.from_bytes(json.dumps(GOOD).encode(), "k") == Applied(3, {"r": Run(1, "x")}, 2)
    with pytest.raises(Corrupt, match="it does not say"):
        Applied.from_bytes(json.dumps({**GOOD, **wrong}).encode(), "k")


def test_a_run_that_another_took_over_still_says_where_it_stopped() -> None:
    assert Applied(3).ended("r", 5, is_done=False) == Applied(5, {"r": Run(5, "", stopped=True)}, 1)
    stopped = Applied(3, {"r": Run(1, "x")}).ended("r", 5, is_done=False)
    assert stopped == Applied(5, {"r": Run(5, "x", stopped=True)}, 1)
    assert Applied.from_bytes(stopped.to_bytes(), "k") == stopped
    assert Applied(3, {"r": Run(1, "x")}).ended("r", 5, is_done=True) == Applied(5, {}, 1)


def test_the_next_run_begins_where_a_stopped_one_ended_and_not_where_one_is_at_work() -> None:
    """What a stopped run left out would wait until the run counts as dead."""
    since = iso_millis(NOW)
    assert Applied(5, {"r": Run(3, since, stopped=True)}).start(NOW) == 3
    assert Applied(5, {"r": Run(3, since)}).start(NOW) == 5


def test_a_commit_without_a_member_is_not_the_one_that_is_repeated() -> None:
    row = CommitRow(1, MAIN, "s", 1, '{"operations": []}', "{}", "2026-01-01T00:00:00Z")
    assert same_record(row, {"operations": []})
    assert not same_record(row, {"operations": [], "merge": {"branch": "draft"}})
    assert not same_record(row, {"operations": [1]})
