"""docs/troubleshooting.md: every command is run, on what its section is about, and ends as the page says."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

import worm
from tests.docs.markdown import ROOT, anchors, blocks
from tests.docs.running import run_page
from tests.emulators import new_bucket
from tests.harness import created
from worm.dev.aws import start_moto
from worm.errors import Unavailable
from worm.sdk.database import Worm
from worm.store.base import Store
from worm.store.open import open_store
from worm.store.probe import PROBE_PREFIX

PAGE = ROOT / "docs" / "troubleshooting.md"
ACME = "org/customers/acme/data.json"
SCHEMA = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "fields": {"name": {"type": "string", "required": True}, "email": {"type": "string"}},
            "oplog": True,
            "softDelete": True,
            "indexes": {"byEmail": {"field": "email", "unique": True}},
        },
        "Note": {"path": "#org/@notes/(id:string)", "fields": {"text": {"type": "string"}}, "oplog": True},
        "Account": {
            "path": "#org/@accounts/(id:string)",
            "fields": {"balance": {"type": "integer"}},
            "oplog": True,
            "manifest": {"enabled": True},
            "space": "main",
        },
    },
}


class Place:
    """The directory that the page starts with, and the bucket that it goes on with."""

    def __init__(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._endpoint = endpoint
        self._patch = monkeypatch

    def directory(self, folder: Path) -> None:
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        with worm.connect(str(folder / "data"), schema=SCHEMA) as db:
            db.push()
            for name in ("Acme", "Acme Corp", "Acme Corporation"):
                db.model("Customer").upsert({"id": "acme", "name": name})
            db.model("Customer").insert({"id": "globex", "name": "Globex"})
            db.model("Note").insert({"id": "todo", "text": "call Acme"})

    def bucket(self) -> None:
        """A valid document, an invalid one over it, and its dead letter."""
        self._patch.setenv("AWS_ENDPOINT_URL", self._endpoint)
        self._bucket = new_bucket(self._endpoint, versioned=True)
        self._patch.setenv("WORM_URL", f"s3://{self._bucket}")
        probed = hashlib.sha256(self._store.identity.encode()).hexdigest()[:16]
        self._store.put(f"{PROBE_PREFIX}passed-{probed}.json", b"{}")  # moto's answers to a race are not reliable
        with self._session() as db:
            db.push()
            db.model("Customer").insert({"id": "acme", "name": "Acme"})
        self._store.put(ACME, b'{"name": 7}')
        sqs = boto3.client("sqs", endpoint_url=self._endpoint)
        queue = sqs.create_queue(QueueName=f"dlq-{self._bucket}")["QueueUrl"]
        self._patch.setenv("CAPTURE_DLQ", queue)
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=created(ACME, bucket=self._bucket),
            MessageAttributes={"reason": {"DataType": "String", "StringValue": "name: must be a string, not integer"}},
        )

    def correct(self) -> None:
        self._store.put(ACME, b'{"name": "Acme"}')

    def copy(self) -> None:
        """An old version of an account over the current one, as a plain client copies it."""
        with self._session() as db:
            accounts = db.model("Account")
            accounts.insert({"id": "a", "balance": 1})
            accounts.patch("a", {"balance": 2})
            s3, key = boto3.client("s3", endpoint_url=self._endpoint), "org/accounts/a/data.json"
            versions = s3.list_object_versions(Bucket=self._bucket, Prefix=key)["Versions"]
            s3.copy_object(
                Bucket=self._bucket,
                Key=key,
                CopySource={"Bucket": self._bucket, "Key": key, "VersionId": versions[-1]["VersionId"]},
            )
            db.repair("Account")

    @property
    def _store(self) -> Store:
        return open_store(f"s3://{self._bucket}", endpoint_url=self._endpoint)

    def _session(self) -> Worm:
        return worm.connect(f"s3://{self._bucket}", schema=SCHEMA, endpoint_url=self._endpoint)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """The embedded AWS: moto alone lists the versions of a copied object in another order than S3."""
    aws = start_moto(tmp_path, "us-east-1")
    yield aws.endpoint_url
    aws.stop()


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws_environment: None, endpoint: str
) -> None:
    folder, place = tmp_path / "home", Place(endpoint, monkeypatch)
    folder.mkdir()
    place.directory(folder)
    actions = {"bucket": place.bucket, "correct": place.correct, "copy": place.copy}
    run_page(PAGE, folder, monkeypatch, actions)
    with worm.connect(str(folder / "data")) as db:
        assert [report.differences for report in db.verify()] == [[], [], []]


def test_every_section_is_in_the_table_of_symptoms() -> None:
    linked = set(re.findall(r"\]\(#([a-z0-9-]+)\)", PAGE.read_text().partition("\n## ")[0]))
    assert anchors(PAGE) - {"something-is-wrong"} == linked


def test_the_page_has_no_command_that_is_not_run() -> None:
    assert {block.language for block in blocks(PAGE)} == {"sh", "text", "setup", "exits"}


def test_a_full_disk_is_said_as_the_page_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and the document is as it was."""

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with worm.connect(str(tmp_path), schema=SCHEMA) as db:
        db.push()
        customers = db.model("Customer")
        customers.insert({"id": "acme", "name": "Acme"})
        with monkeypatch.context() as patch:
            patch.setattr("worm.store.tree.keep_access", full)
            with pytest.raises(Unavailable) as refused:
                customers.patch("acme", {"name": "New"})
        said = refused.value.message
        assert (said, refused.value.exit_code) == ("the file system reported an error: No space left on device", 6)
        assert f"`{said}`, exit code 6" in PAGE.read_text()
        assert customers.get("acme")["name"] == "Acme"
        assert [report.differences for report in db.verify()] == [[], [], []]
