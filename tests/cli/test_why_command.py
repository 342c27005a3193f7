"""`worm why`: what people and programs see, and what a key may be."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from tests.cli.company import SCHEMA, Command
from tests.emulators import CREDENTIALS, new_bucket
from tests.harness import created
from worm.formats import load_schema
from worm.sdk.database import Worm, push
from worm.store.open import open_store


def test_a_recorded_document_is_shown_with_its_entry_and_its_row(worm: Command, url: str, session: Worm) -> None:
    ended = worm("why", "org/customers/zeta/data.json", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    shown = dict(line.split(":", 1) for line in ended.stdout.splitlines())
    assert {name: text.strip() for name, text in shown.items() if name != "Object"} == {
        "Key": "org/customers/zeta/data.json",
        "Verdict": "recorded",
        "Model": "Customer",
        "Rule": "org/customers/<id>/data.json",
        "Id": "zeta",
        "Entry": "1 (create) at 2026-01-01T00:00:02Z by user:ann",
        "Row": "there of entry 1",
        "Why": "entry 1 records this version and the table has its row",
        "Next": "nothing",
    }


def test_a_file_by_its_path_and_what_to_do_about_it(worm: Command, url: str, session: Worm) -> None:
    place = Path(url) / "org/customers/new/data.json"
    place.parent.mkdir()
    place.write_text('{"name": "New"}')
    ended = worm("why", str(place), "--format", "json", "--url", url)
    shape = json.loads(ended.stdout)
    assert (ended.exit_code, shape["verdict"], shape["key"]) == (1, "waiting", "org/customers/new/data.json")
    assert shape["nextStep"] == "no workers watch this location: `worm repair Customer` records it now"
    assert worm("repair", "--url", url).exit_code == 0
    assert worm("why", str(place), "--url", url).exit_code == 0


def test_a_wrong_key_names_the_right_one(worm: Command, url: str, session: Worm) -> None:
    ended = worm("why", "org/customers/New Co/data.json", "--url", url)
    assert ended.exit_code == 1
    assert "Model:       none; Customer is the closest\n" in ended.stdout
    assert "Rejection:   id 'New Co' must be a slug" in ended.stdout
    assert worm("why", "", "--url", url).exit_code == 2
    assert worm("why", "s3://elsewhere/x", "--url", url).exit_code == 2


def test_an_object_of_the_library_is_shown_with_what_it_is_and_whether_it_is_healthy(
    worm: Command, url: str, session: Worm
) -> None:
    key = ".oplog/customers/acme/0002.json"
    ended = worm("why", key, "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    shown = dict(line.split(":", 1) for line in ended.stdout.splitlines())
    assert {name: text.strip() for name, text in shown.items() if name != "Object"} == {
        "Key": key,
        "Verdict": "system",
        "Model": "Customer",
        "Id": "acme",
        "Why": "entry 2 of Customer 'acme': update at 2026-01-01T00:00:03Z by user:ann, the newest one",
        "Next": "nothing",
    }
    session.store.put(".oplog/customers/acme/0003.json", b"garbage")
    session.store.put("org/customers/acme/data.json", b'{"name": "New"}')
    damaged = worm("why", "org/customers/acme/data.json", "--url", url)
    assert (damaged.exit_code, "Entry:       unknown\n" in damaged.stdout) == (1, True)
    assert "Next:        `worm why .oplog/customers/acme/0003.json` says what to do\n" in damaged.stdout
    assert worm("why", "org/customers/acme/.worm.x", "--url", url).exit_code == 0
    assert worm("why", ".oplog/customers/acme/0009.json", "--url", url).exit_code == 1


@pytest.mark.slow
def test_dead_letters_are_found_in_the_queue_and_stay_there(
    worm: Command, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = new_bucket(moto_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    url, key = f"s3://{bucket}/in", "org/customers/bad/data.json"
    store = open_store(url, endpoint_url=moto_endpoint)
    push(store, load_schema(SCHEMA))
    store.put(key, b"not json")
    sqs = boto3.client("sqs", endpoint_url=moto_endpoint)
    queue = sqs.create_queue(QueueName=f"dlq-{bucket}")["QueueUrl"]
    for body in ("nonsense", created("in/org/customers/other/data.json", bucket=bucket)):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    sqs.send_message(
        QueueUrl=queue,
        MessageBody=created(f"in/{key}", bucket=bucket),
        MessageAttributes={"reason": {"DataType": "String", "StringValue": "not JSON"}},
    )
    shown = worm("why", f"{url}/{key}", "--url", url)
    assert (shown.exit_code, "Dead letter: not checked: name the queue" in shown.stdout) == (1, True)
    for _ in range(2):
        found = json.loads(worm("why", key, "--dlq", queue, "--format", "json", "--url", url).stdout)
        assert (found["verdict"], [one["reason"] for one in found["deadLetters"]]) == ("rejected", ["not JSON"])
    monkeypatch.setenv("WORM_DLQ_URL", queue)
    assert ": not JSON" in worm("why", key, "--url", url).stdout
    refused = worm("why", key, "--dlq", f"{queue}-gone", "--url", url)
    assert (refused.exit_code, refused.stderr.count("\n")) == (6, 1)


SLOW_IDS = [pytest.param(one, marks=pytest.mark.slow) for one in ("jane@acme.com", "Jane Doe", ".env", "50%")]


@pytest.mark.parametrize("id", ["Müller", "-x", "https://acme.com/a", *SLOW_IDS])
def test_any_id_goes_through_the_commands(worm: Command, tmp_path: Path, id: str) -> None:
    url, schema = str(tmp_path / "data"), tmp_path / "schema.json"
    model = {"path": "#org/@people/(id:string)", "oplog": True, "softDelete": True, "manifest": {"enabled": True}}
    schema.write_text(json.dumps({"models": {"Person": {**model, "fields": {"name": {"type": "string"}}}}}))
    at = ("--url", url)
    assert worm("push", str(schema), *at).exit_code == 0
    assert worm("put", "Person", "--id", id, *at, stdin='{"name": "x"}').exit_code == 0
    assert json.loads(worm("get", *at, "Person", "--", id).stdout)["id"] == id
    assert [row["id"] for row in json.loads(worm("table", "query", "Person", "--format", "json", *at).stdout)] == [id]
    assert worm("history", *at, "Person", "--", id).exit_code == 0
    assert worm("rm", *at, "Person", "--", id).exit_code == 0
    assert worm("trash", "restore", *at, "Person", "--", id).exit_code == 0
    assert worm("verify", *at).stdout.endswith("no differences\n")
