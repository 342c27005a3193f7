"""`worm migrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.sdk.database import Worm, connect


def test_rules_are_shown_in_a_dry_run_and_applied_without_one(worm: Command, url: str, session: Worm) -> None:
    rules = ("--rename", "status=state", "--default", "seats=1", "--convert", "score=integer", "--remove", "tags")
    dry = worm("migrate", "Customer", *rules, "--dry-run", "--filter", "id=kobe", "--url", url)
    assert (dry.exit_code, dry.stderr) == (0, "")
    lines = dry.stdout.splitlines()
    assert lines[0] == "kobe: -status inactive, +state inactive, +seats 1"
    assert lines[1:] == ["looked at 1 document: 1 would change, 0 already fit, 0 failed", "nothing was changed"]
    done = worm("migrate", "Customer", *rules, "--url", url, "--actor", "user:bob")
    assert done.exit_code == 1
    assert done.stdout == (
        "looked at 3 documents: 2 changed, 0 already fit, 1 failed\n"
        "failed  acme: score: 10.5 cannot be converted to integer\n"
    )
    found = connect(url).model("Customer").get("kobe")
    assert (found["state"], found["seats"]) == ("inactive", 1)
    assert connect(url).model("Customer").get_history("kobe")[-1].actor == "user:bob"


def test_rules_of_a_file_and_a_function(
    worm: Command, url: str, session: Worm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.json").write_text('[{"rename": {"from": "vip", "to": "important"}}]')
    code = "def louder(document):\n    document['name'] = document['name'].upper()\n"
    (tmp_path / "my_migration.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    given = ("--rules", "rules.json", "--function", "my_migration:louder", "--format", "json")
    shape = json.loads(worm("migrate", "Customer", *given, "--url", url).stdout)
    assert (shape["changed"], shape["unchanged"], shape["failed"]) == (2, 1, [])
    found = connect(url).model("Customer").get("acme")
    assert (found["name"], found["important"], "vip" in found) == ("ACME, INC.", True, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--rename", "status"), "'status' is not of the form --rename OLD=NEW"),
        (("--default", "status=lead"), "--default 'status=lead': the value is not JSON"),
        (("--convert", "age=text"), "cannot convert to 'text'"),
        (("--remove", "id"), "the field 'id' is maintained by the store"),
        (("--function", "nowhere_to_be_found:f"), "No module named 'nowhere_to_be_found'"),
        ((), "the list of rules is empty"),
    ],
)
def test_a_wrong_rule_is_told(worm: Command, url: str, session: Worm, given: tuple[str, ...], message: str) -> None:
    ended = worm("migrate", "Customer", *given, "--url", url)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
