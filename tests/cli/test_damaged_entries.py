"""What the command says of an object under `.oplog/` that is not an entry: which document it costs, that the others are
done, and the way out."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.sdk.database import Worm

GARBAGE = ".oplog/customers/acme/0003.json"
HUGE = ".oplog/customers/acme/9999999999999999999.json"


def test_put_says_that_the_document_is_stored(worm: Command, url: str, session: Worm) -> None:
    """A user who reads only `Corrupt` writes it again, or believes it lost."""
    session.store.put(GARBAGE, b"garbage")
    ended = worm("put", "Customer", "--id", "acme", "--url", url, stdin='{"name": "New", "status": "active"}')
    assert ended.exit_code == 9
    assert ended.stderr.startswith(
        "worm: Customer 'acme': the change is stored, but its history is damaged: not valid JSON: "
    )
    assert f"[{GARBAGE}]" in ended.stderr
    assert "worm repair --set-aside KEY" in ended.stderr
    assert json.loads(worm("get", "Customer", "acme", "--url", url).stdout)["name"] == "New"
    found = worm("table", "query", "Customer", "--filter", "name=New", "--format", "json", "--url", url)
    assert [row["id"] for row in json.loads(found.stdout)] == ["acme"]


def test_of_many_only_the_damaged_one_fails(worm: Command, url: str, session: Worm) -> None:
    session.store.put(GARBAGE, b"garbage")
    lines = "\n".join(json.dumps({"id": one, "name": "N", "status": "active"}) for one in ("acme", "kobe", "new"))
    ended = worm("put", "Customer", "--many", "--format", "json", "--url", url, stdin=lines)
    assert ended.exit_code != 0
    failed = [one["id"] for one in json.loads(ended.stdout) if one.get("reason")]
    assert failed == ["acme"]
    rows = session.model("Customer").find_all(filter={"name": "N"})
    assert sorted(str(row["id"]) for row in rows) == ["acme", "kobe", "new"]
    assert [entry.op for entry in session.model("Customer").get_history("kobe")] == ["create", "update"]


def test_repair_and_rebuild_do_the_rest_and_exit_with_a_code(worm: Command, url: str, session: Worm) -> None:
    session.store.put(GARBAGE, b"garbage")
    for key in ("org/customers/.worm.manifest.json", "org/customers/.worm.heads.json"):
        session.store.delete(key)
    repaired = worm("repair", "--url", url)
    assert repaired.exit_code == 9
    assert f"left as it is  {GARBAGE}: not valid JSON" in repaired.stdout
    rebuilt = worm("table", "rebuild", "Customer", "--url", url)
    assert rebuilt.exit_code == 9
    assert "damaged  acme: the table has the stored document; not valid JSON" in rebuilt.stdout
    assert "Found 3 entities" in rebuilt.stdout
    verified = worm("verify", "--url", url)
    assert verified.exit_code == 1
    assert [line.split("  ")[0] for line in verified.stdout.splitlines() if GARBAGE in line] == ["oplog-corrupt"]
    assert "\n1 difference\n" in verified.stdout


def test_push_does_the_rest_and_exits_with_a_code(worm: Command, url: str, session: Worm, schema_file: Path) -> None:
    session.store.put(GARBAGE, b"garbage")
    acme, zoe = (session.resolver.document_key("Customer", one) for one in ("acme", "zoe"))
    session.store.put(acme, b'{"name": "raw", "status": "active"}')
    session.store.put(zoe, b'{"name": "zoe", "status": "active"}')
    pushed = worm("push", str(schema_file), "--url", url)
    assert pushed.exit_code == 9
    assert f"left as it is  {acme}: not valid JSON" in pushed.stdout
    assert session.model("Customer").get_history("zoe")[0].op == "create"


def test_what_is_no_entry_can_be_set_aside(worm: Command, url: str, session: Worm) -> None:
    """The way out: nothing is lost, and the history goes on."""
    session.store.put(GARBAGE, b"garbage")
    session.store.put(HUGE, b'{"op":"create","seq":9999999999999999999,"ts":"2026-01-01T00:00:00Z"}')
    worm("put", "Customer", "--id", "acme", "--url", url, stdin='{"name": "New", "status": "active"}')
    for key, code in (("org/customers/acme/profile.json", 2), (GARBAGE.replace("3", "2"), 2), (f"{GARBAGE}x", 2)):
        assert worm("repair", "--set-aside", key, "--url", url).exit_code == code
    assert worm("repair", "--set-aside", GARBAGE.replace("3", "7"), "--url", url).exit_code == 3
    ended = worm("repair", "--set-aside", GARBAGE, "--set-aside", HUGE, "--url", url)
    assert ended.exit_code == 0, ended.stdout
    copies = sorted(listed.key for listed in session.store.list(".worm.aside/"))
    assert [key.rsplit("-", 1)[0] for key in copies] == [f".worm.aside/{GARBAGE}", f".worm.aside/{HUGE}"]
    found = session.store.get(copies[0])
    assert found is not None
    assert found.body == b"garbage"
    assert worm("verify", "--url", url).exit_code == 0
    history = json.loads(worm("history", "Customer", "acme", "--format", "json", "--url", url).stdout)
    assert [entry["seq"] for entry in history] == [1, 2, 3]


@pytest.mark.parametrize("body", ['{"op": ["x"], "seq": 3}', '{"op": {}, "seq": 3}', "[" * 3000, '{"seq": 1e400}'])
def test_verify_of_a_hostile_entry_is_a_line(worm: Command, url: str, session: Worm, body: str) -> None:
    """It printed a traceback: an op that is a list cannot be looked up."""
    session.store.put(GARBAGE, body.encode())
    ended = worm("verify", "--url", url)
    assert ended.exit_code == 1
    assert [line.split("  ")[0] for line in ended.stdout.splitlines() if GARBAGE in line] == ["oplog-corrupt"]


def test_a_missing_entry_is_told_by_history(worm: Command, url: str, session: Worm) -> None:
    """It showed the entries before it, as if there were no others."""
    session.store.delete(".oplog/customers/acme/0001.json")
    ended = worm("history", "Customer", "acme", "--url", url)
    assert ended.exit_code == 9
    assert "a gap in the oplog: entry 1 is missing [.oplog/customers/acme/0001.json]" in ended.stderr
    found = session.history(model="Customer")
    assert [(one.id, one.seq) for one in found if one.id == "acme"] == [("acme", 2)]
    assert [damage.key for damage in found.damages] == [".oplog/customers/acme/0001.json"]


def _deleted(seq: int) -> Callable[[Worm], object]:
    return lambda session: session.store.delete(_entry(seq))


def _put(seq: int) -> Callable[[Worm], object]:
    return lambda session: session.store.put(_entry(seq), b"garbage")


def _entry(seq: int) -> str:
    return f".oplog/customers/acme/{seq:04d}.json"


OPLOGS: dict[str, tuple[Callable[[Worm], object], str, str, int]] = {
    "an older entry is missing": (_deleted(3), "oplog-gap", _entry(3), 0),
    "the first entry is missing": (_deleted(1), "oplog-gap", _entry(1), 0),
    "an older entry is overwritten": (_put(3), "oplog-corrupt", _entry(3), 0),
    "the entry before the newest is missing": (_deleted(4), "oplog-gap", _entry(4), 9),
    "the newest entry is overwritten": (_put(5), "oplog-corrupt", _entry(5), 9),
    "something follows the newest entry": (_put(6), "oplog-corrupt", _entry(6), 9),
    "something has a huge number": (_put(9999999999999999999), "oplog-gap", _entry(6), 9),
    "the newest entry is missing": (_deleted(5), "replay-differs", "org/customers/acme/data.json", 0),
}
"""What happened to entries 1 to 5; the difference that verify names, and its key; the exit code of repair."""


@pytest.mark.parametrize("case", OPLOGS)
def test_what_verify_and_repair_make_of_a_damaged_history(worm: Command, url: str, session: Worm, case: str) -> None:
    """The table in docs/history.md: only damage at the end stops a history, and `worm repair` says so by its code."""
    damage, kind, key, code = OPLOGS[case]
    for name in ("c", "d", "e"):
        session.model("Customer").patch("acme", {"name": name})
    damage(session)
    verified = worm("verify", "Customer", "--url", url)
    assert verified.exit_code == 1
    assert [line for line in verified.stdout.splitlines() if line.startswith(f"{kind}  {key}: ")] != []
    repaired = worm("repair", "Customer", "--url", url)
    assert (repaired.exit_code, "left as it is" in repaired.stdout) == (code, code == 9)
    assert json.loads(worm("get", "Customer", "acme", "--url", url).stdout)["name"] == "e"
    queried = worm("table", "query", "Customer", "--filter", "name=e", "--format", "json", "--url", url)
    assert [row["id"] for row in json.loads(queried.stdout)] == ["acme"]
    again = worm("verify", "Customer", "--url", url).exit_code
    assert again == (0 if case == "the newest entry is missing" else 1), "what is lost is named for ever"
    explained = worm("why", key, "--url", url)
    assert explained.exit_code == (0 if again == 0 else 1)
    assert ("he history is stopped" in explained.stdout) == (code == 9), explained.stdout


def test_names_that_are_no_numbers_are_ignored(worm: Command, url: str, session: Worm) -> None:
    for name in ("x.json", "0003.json.bak", "3.json", "00003.json", "99999999999999999999.json"):
        session.store.put(f".oplog/customers/acme/{name}", b"garbage")
    assert worm("verify", "--url", url).exit_code == 0
    assert worm("repair", "--url", url).exit_code == 0


def test_what_is_set_aside_behind_a_gap_is_recorded_again(worm: Command, url: str, session: Worm) -> None:
    """The step that `worm why` names is taken as it is written."""
    for name in ("c", "d", "e"):
        session.model("Customer").patch("acme", {"name": name})
    session.store.delete(_entry(4))
    assert worm("repair", "--url", url).exit_code == 9
    shown = worm("why", _entry(5), "--url", url).stdout
    (command,) = re.findall(r"`worm (repair [^`]*--set-aside[^`]*)`", shown)
    assert worm(*shlex.split(command), "--url", url).exit_code == 0
    assert worm("verify", "--url", url).exit_code == 0
    history = json.loads(worm("history", "Customer", "acme", "--format", "json", "--url", url).stdout)
    assert [(entry["seq"], entry.get("actor")) for entry in history[2:]] == [(3, "user:ann"), (4, "user:ann")]


@pytest.mark.parametrize(
    "body",
    [
        '{"version":1,"model":"Customer","heads":{"acme":[1]}}',
        '{"version":1,"heads":{}}',
        '{"version":1,"model":"Customer","heads":{"acme":{}}}',
        '{"version":1,"model":"Customer","heads":{},"damaged":5}',
        '{"version":1,"model":"Customer","heads":{},"damaged":[{}]}',
    ],
)
def test_heads_of_another_shape_are_rebuilt(worm: Command, url: str, session: Worm, body: str) -> None:
    """Every command ended with a traceback, `worm repair` too."""
    session.store.put("org/customers/.worm.heads.json", body.encode())
    assert "heads-damaged" in worm("verify", "--url", url).stdout
    assert worm("repair", "--url", url).exit_code == 0
    assert worm("verify", "--url", url).exit_code == 0


def test_history_knows_all_documents_though_the_heads_were_lost(url: str, session: Worm) -> None:
    """The next write made heads of its own document alone, and a search believed them."""
    session.store.delete("org/customers/.worm.heads.json")
    customers = session.model("Customer")
    customers.insert({"id": "new", "name": "New", "status": "active"})
    assert {one.id for one in session.history(model="Customer")} == {"acme", "kobe", "zeta", "new"}
    session.sweep()
    with session.store.requests.measure() as spent:
        assert {one.id for one in session.history(model="Customer")} == {"acme", "kobe", "zeta", "new"}
    assert spent.get("LIST", 0) == 1, "after a sweep the heads know all again: only pending notes are listed"


def test_a_search_finds_the_history_of_a_damaged_document(url: str, session: Worm) -> None:
    """A rebuild leaves it out of the heads."""
    session.store.put(HUGE, b"garbage")
    session.model("Customer").build_manifest()
    found = session.history(model="Customer")
    assert [(one.id, one.seq) for one in found if one.id == "acme"] == [("acme", 2), ("acme", 1)]
    assert HUGE in {damage.key for damage in found.damages}


BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
from worm.sdk.database import connect
db = connect(sys.argv[1], maintenance=\"inline\", probe=False)
print(sorted({one.kind for report in db.verify() for one in report.differences}))
print([list(report.damaged) for report in db.repair()])
print(len(db.history(model="Customer")))
"""


@pytest.mark.slow
def test_a_number_in_a_name_takes_no_memory(url: str, session: Worm) -> None:
    """`verify` made a set of all numbers up to it: 22.8 GB for nine more digits."""
    for key in (
        HUGE,
        ".oplog/customers/kobe/.archive/0002-9999999999999999999-0123456789abcdef.ndjson",
        ".oplog/customers/zeta/.times/000000000000-0000000000000000001",
    ):
        session.store.put(key, b"garbage")
    limit = str(2 << 30)
    if resource.getrlimit(resource.RLIMIT_AS)[1] not in (resource.RLIM_INFINITY, -1):
        limit = str(min(2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, url, limit], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["[['acme'], []]", "4"]
