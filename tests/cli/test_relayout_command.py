"""`worm relayout`."""

from __future__ import annotations

import json

from tests.cli.company import Command
from worm.sdk.database import Worm, connect

ROOT_KEYS = [".oplog/customers/acme/0001.json", ".oplog/customers/acme/0002.json"]
COLLECTION_KEYS = ["org/customers/.oplog/acme/0001.json", "org/customers/.oplog/acme/0002.json"]


def _there(session: Worm, keys: list[str]) -> list[bool]:
    return [session.store.head(key) is not None for key in keys]


def test_it_only_counts_unless_told_to_act(worm: Command, url: str, session: Worm) -> None:
    ended = worm("relayout", "--to", "collection", "--delete-old", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    size = sum(listed.size for listed in session.store.list(".oplog/"))
    assert ended.stdout == (
        "Model     Directory  Objects\n"
        "--------  ---------  -------\n"
        "Customer  oplog            4\n"
        f"would move 4 objects, {size:,} bytes, to collection\n"
        "nothing was changed; pause capture, then run it with --no-dry-run\n"
    )
    assert (_there(session, ROOT_KEYS), _there(session, COLLECTION_KEYS)) == ([True, True], [False, False])


def test_it_moves_history_and_everything_still_verifies(worm: Command, url: str, session: Worm) -> None:
    before = worm("history", "Customer", "acme", "--url", url).stdout
    ended = worm("relayout", "--to", "collection", "--no-dry-run", "--url", url)
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[3:] == [
        "copied 4, already there 0, written in the meantime 0",
        "verified 4, changed since 0, deleted 0",
        "4 old objects left; pass --delete-old to delete them",
    ]
    assert ended.stderr == "copy: 4 objects\nverify: 4 objects\n"
    assert worm("history", "Customer", "acme", "--url", url).stdout == before
    assert worm("verify", "--url", url).exit_code == 0
    ended = worm("relayout", "--to", "collection", "--no-dry-run", "--delete-old", "--url", url)
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (0, "verified 4, changed since 0, deleted 4")
    assert (_there(session, ROOT_KEYS), _there(session, COLLECTION_KEYS)) == ([False, False], [True, True])
    assert worm("verify", "--url", url).exit_code == 0
    again = worm("relayout", "--to", "collection", "--no-dry-run", "--url", url)
    assert (again.exit_code, again.stdout) == (0, "everything is already in the layout collection\n")


def test_directories_may_go_to_different_places(worm: Command, url: str, session: Worm) -> None:
    arguments = ("--to", "collection", "--oplog", "inline", "--snapshots", "root", "--trash", "inline")
    assert worm("relayout", *arguments, "--no-dry-run", "--delete-old", "--url", url).exit_code == 0
    moved = connect(url, probe=False)
    storage = moved.schema.storage
    assert (storage.oplog_layout, storage.snapshots_layout, storage.trash_layout) == ("inline", "root", "inline")
    assert moved.store.head("org/customers/acme/.oplog/0002.json") is not None


def test_the_report_as_json(worm: Command, url: str, session: Worm) -> None:
    ended = worm("relayout", "--to", "inline", "--no-dry-run", "--format", "json", "--url", url)
    shape = json.loads(ended.stdout)
    assert shape.pop("bytes") > 0
    assert shape == {
        "dryRun": False,
        "from": {"oplog": "root", "snapshots": "root", "trash": "root"},
        "to": {"oplog": "inline", "snapshots": "inline", "trash": "inline"},
        "objects": [{"model": "Customer", "directory": "oplog", "objects": 4}],
        "foreign": 0,
        "copied": 4,
        "present": 0,
        "late": 0,
        "withdrawn": 0,
        "verified": 4,
        "superseded": 0,
        "deleted": 0,
        "problems": [],
    }


def test_a_gap_in_an_oplog_keeps_the_old_objects_and_ends_with_one(worm: Command, url: str, session: Worm) -> None:
    session.store.delete(ROOT_KEYS[0])
    ended = worm("relayout", "--to", "collection", "--no-dry-run", "--delete-old", "--url", url)
    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-2:] == [
        f"oplog-gap  {COLLECTION_KEYS[0]}: no entry 1 (run `worm why` on this key to see what to do)",
        "1 problem: no old object was deleted",
    ]
    assert (_there(session, ROOT_KEYS), _there(session, COLLECTION_KEYS)) == ([False, True], [False, True])


def test_a_document_that_waits_for_capture_is_no_problem(worm: Command, url: str, session: Worm) -> None:
    """Capture is paused meanwhile, so there may be such documents."""
    session.store.put("org/customers/new/data.json", b'{"name": "New"}')
    assert worm("relayout", "--to", "collection", "--no-dry-run", "--delete-old", "--url", url).exit_code == 0
    assert worm("repair", "--url", url).exit_code == 0
    assert worm("verify", "--url", url).exit_code == 0


def test_a_conflict_names_both_keys_and_ends_with_four(worm: Command, url: str, session: Worm) -> None:
    session.store.put(COLLECTION_KEYS[1], b"{}")
    ended = worm("relayout", "--to", "collection", "--no-dry-run", "--url", url)
    assert ended.exit_code == 4
    told = f"worm: two different objects for one key: {ROOT_KEYS[1]} and {COLLECTION_KEYS[1]} (something wrote"
    assert ended.stderr.splitlines()[-1].startswith(told)


def test_the_new_layout_must_be_named(worm: Command, url: str, session: Worm) -> None:
    assert worm("relayout", "--url", url).exit_code == 2
    assert worm("relayout", "--to", "nowhere", "--url", url).exit_code == 2
