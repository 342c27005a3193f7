"""`worm push` and `worm import`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.company import SCHEMA, Command
from worm.sdk.database import Worm, connect
from worm.store.open import open_store


def test_a_first_push_tells_what_it_wrote(worm: Command, url: str, schema_file: Path) -> None:
    ended = worm("push", str(schema_file), "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        f"pushed the schema to file://{url}\n"
        "  added    Customer  #org/@customers/(id:slug)\n"
        "  added    OrgSettings  #org/@settings\n"
        "  sentinel .worm\n"
        "  sentinel org/customers/.worm\n"
        "  sentinel org/settings/.worm\n"
    )


def test_a_second_push_of_the_same_changes_nothing(worm: Command, url: str, schema_file: Path) -> None:
    worm("push", str(schema_file), "--url", url)
    assert worm("push", str(schema_file), "--url", url).stdout == f"file://{url} already has this schema\n"


def test_a_push_that_would_strand_documents_is_refused_without_force(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    moved = json.loads(json.dumps(SCHEMA).replace("profile.json", "x").replace("@customers", "@clients"))
    other = tmp_path / "moved.json"
    other.write_text(json.dumps(moved))
    refused = worm("push", str(other), "--url", url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("worm: Customer has documents, but the new schema changes its path")
    assert worm("push", str(other), "--url", url, "--force").exit_code == 0


def test_a_mistake_in_the_schema_is_named_by_its_path(worm: Command, url: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"version": "1.0", "models": {"Customer": {"path": "customers"}}}')
    ended = worm("push", str(bad), "--url", url)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("worm: models.Customer.path: must name its collection with @")
    assert ended.stderr.count("\n") == 1


def test_a_missing_schema_file_is_not_found(worm: Command, url: str, tmp_path: Path) -> None:
    ended = worm("push", str(tmp_path / "none.json"), "--url", url)
    hint = "paths are relative to the current directory"
    assert (ended.exit_code, ended.stderr) == (3, f"worm: the file {tmp_path / 'none.json'} does not exist ({hint})\n")


def _stricter(tmp_path: Path) -> Path:
    """Customers without a score are not valid any more."""
    changed = json.loads(json.dumps(SCHEMA))
    changed["models"]["Customer"]["fields"]["score"]["required"] = True
    path = tmp_path / "stricter.json"
    path.write_text(json.dumps(changed))
    return path


def test_a_dry_run_shows_what_a_push_means_and_changes_nothing(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    ended = worm("push", str(_stricter(tmp_path)), "--dry-run", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "  changed  Customer  #org/@customers/(id:slug)\n"
        "    fields changed: score\n"
        "    checked 3 of 3 rows of the table: 1 would not fit\n"
        "    'zeta': score: is required\n"
        "nothing was changed\n"
        "the push needs --force\n"
    )
    assert not connect(url).schema.model("Customer").fields["score"].required
    shape = json.loads(worm("push", str(_stricter(tmp_path)), "--dry-run", "--format", "json", "--url", url).stdout)
    assert (shape["dryRun"], shape["needsForce"], shape["plan"]["misfits"]) == (True, True, 1)


def test_a_push_that_leaves_documents_unfit_asks_for_force(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    refused = worm("push", str(_stricter(tmp_path)), "--url", url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "1 of 3 documents would not fit the new schema: 'zeta' (score: is required)" in refused.stderr
    forced = worm("push", str(_stricter(tmp_path)), "--force", "--url", url)
    assert (forced.exit_code, forced.stderr) == (0, "")
    verified = worm("verify", "Customer", "--url", url)
    assert verified.exit_code == 0
    told = "outgrown  org/customers/zeta/data.json: no longer fits the schema: score: is required\n"
    assert told in verified.stdout


def test_a_push_tells_what_changes_and_gives_json_for_scripts(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    changed = json.loads(json.dumps(SCHEMA))
    changed["models"]["Customer"]["indexes"]["byName"] = {"field": "name", "unique": True}
    path = tmp_path / "unique.json"
    path.write_text(json.dumps(changed))
    ended = worm("push", str(path), "--url", url)
    assert ended.stdout == (
        "Customer:\n"
        "  indexes to build: name\n"
        "  checked 3 of 3 rows of the table: 0 would not fit\n"
        f"pushed the schema to file://{url}\n"
        "  changed  Customer  #org/@customers/(id:slug)\n"
        "  sentinel .worm\n"
        "  adopted  Customer: 3 documents, 0 recorded, 3 in the table, 3 unique values claimed\n"
    )
    shape = json.loads(worm("push", str(path), "--format", "json", "--url", url).stdout)
    assert (shape["schemaChanged"], shape["changed"]) == (False, [])
    assert shape["adopted"][0] == {
        "model": "Customer",
        "documents": 3,
        "recorded": 0,
        "rows": 3,
        "claimed": 0,
        "conflicts": [],
        "problems": [],
        "damaged": [],
    }


def _documents(url: str) -> None:
    store = open_store(url)
    store.put("shop/orders/1/order.json", b'{"total": 10.5, "paid": true}')
    store.put("shop/orders/2/order.json", b'{"total": 7, "paid": false, "note": "x"}')
    store.put("shop/orders/3/order.json", b"not json")
    store.put("shop/readme.txt", b"hello")


def test_import_writes_the_schema_to_stdout_and_the_report_to_stderr(worm: Command, url: str) -> None:
    _documents(url)
    ended = worm("import", "--url", url)
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == {
        "version": "1.0",
        "models": {
            "Order": {
                "path": "#shop/@orders/(id:int)",
                "file": "order.json",
                "fields": {
                    "total": {"type": "number", "required": True},
                    "paid": {"type": "boolean", "required": True},
                    "note": {"type": "string"},
                },
                "oplog": True,
                "manifest": {"enabled": True},
            }
        },
    }
    lines = ended.stderr.splitlines()
    assert lines[0] == "Order: #shop/@orders/(id:int), order.json, 3 documents, 3 read"
    assert lines[1].startswith("  unreadable: 1 document: shop/orders/3/order.json (")
    assert lines[2] == "  left out: 1 key outside any collection: shop/readme.txt"


def test_import_can_push_at_once_and_the_documents_are_in_the_table_then(worm: Command, url: str) -> None:
    _documents(url)
    ended = worm("import", "--url", url, "--push")
    assert ended.exit_code == 0
    assert "  adopted  Order: 2 documents, 2 recorded, 2 in the table\n" in ended.stderr
    assert "  left as it is  shop/orders/3/order.json: byte offset 0" in ended.stderr
    assert worm("verify", "--url", url).exit_code == 0
    assert connect(url).model("Order").count() == 2
    repaired = worm("repair", "--url", url)
    assert repaired.exit_code == 0
    assert repaired.stdout.splitlines()[:3] == [
        "Model  Looked At  Recorded  Rows",
        "-----  ---------  --------  ----",
        "Order          3         0     2",
    ]
    assert repaired.stdout.splitlines()[3].startswith("left as it is  shop/orders/3/order.json: byte offset 0")


def test_import_writes_a_file_but_never_over_another(worm: Command, url: str, tmp_path: Path) -> None:
    _documents(url)
    output = tmp_path / "inferred.json"
    ended = worm("import", "--url", url, "--output", str(output))
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert list(json.loads(output.read_text())["models"]) == ["Order"]
    again = worm("import", "--url", url, "--output", str(output))
    hint = "choose another --output, or pass --force to overwrite it"
    assert (again.exit_code, again.stderr) == (4, f"worm: {output} already exists ({hint})\n")


def test_import_of_nothing_is_not_found(worm: Command, url: str) -> None:
    ended = worm("import", "--url", url, "--prefix", "shop/")
    assert (ended.exit_code, ended.stderr) == (3, f"worm: there are no JSON documents at file://{url} under shop/\n")
