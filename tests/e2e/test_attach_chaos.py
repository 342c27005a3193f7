"""An existing bucket with 500 documents below a prefix is attached while others go on uploading.

Attach turns on versioning and EventBridge in the middle of it. Workers are at work on the events from the beginning,
with nothing to work on before a schema is pushed. Who wins where is left to the machine. What is true at the end is
not.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.attach.attach_room import SCHEMA, Room
from tests.emulators import new_bucket
from worm.errors import NotFound
from worm.store.s3 import S3Store
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOCUMENTS = 500
CHANGES_AFTER = 60
CHANGES_MAX = 2_000
BATCH = 10
IDLE_SECONDS = 0.1
UPLOAD_SECONDS = 0.01
PREFIX = "data/"


class Queue:
    """A queue behind a rule of EventBridge, and a worker that takes from it until it is told to stop."""

    def __init__(self, endpoint_url: str, bucket: str, name: str, key: Any) -> None:
        self.sqs: SQSClient = boto3.client("sqs", endpoint_url=endpoint_url)
        self.url = self.sqs.create_queue(QueueName=f"{bucket}-{name}")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events = boto3.client("events", endpoint_url=endpoint_url)
        pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [bucket]}, "object": {"key": key}}}
        events.put_rule(Name=f"{bucket}-{name}", EventPattern=json.dumps(pattern))
        events.put_targets(Rule=f"{bucket}-{name}", Targets=[{"Id": name, "Arn": arn}])
        self.handled = 0
        self._idle = threading.Event()  # never set: a pause, so that the machine has time for the others

    def work(self, run: Callable[[Sequence[Message]], BatchOutcome], is_over: Callable[[], bool]) -> None:
        """Until it is over and the queue is empty. What fails comes again at once."""
        while True:
            was_over = is_over()
            found = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=BATCH).get("Messages", [])
            if not found and was_over:
                return
            if not found:
                self._idle.wait(IDLE_SECONDS)
            try:
                outcome = run([Message(one["MessageId"], one["Body"]) for one in found]) if found else BatchOutcome()
                failed = set(outcome.failed)
                assert outcome.rejected == {}
            except NotFound:  # no schema is pushed yet
                self._idle.wait(IDLE_SECONDS)
                failed = {one["MessageId"] for one in found}
            for one in found:
                if one["MessageId"] in failed:
                    handle = {"QueueUrl": self.url, "ReceiptHandle": one["ReceiptHandle"]}
                    self.sqs.change_message_visibility(**handle, VisibilityTimeout=0)
                else:
                    self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])
                    self.handled += 1


class Uploader(threading.Thread):
    """Somebody who knows nothing of this library: creates, overwrites and deletes, until some while after attach."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room, self.is_attached, self.changes = room, threading.Event(), 0
        self.failure: BaseException | None = None
        self._pause = threading.Event()

    def run(self) -> None:
        chance, after = random.Random(20), 0
        try:
            while after < CHANGES_AFTER and self.changes < CHANGES_MAX:
                number = chance.randrange(DOCUMENTS * 6 // 5)
                if chance.random() < 0.1:
                    self.room.s3.delete_object(Bucket=self.room.bucket, Key=self.room.key(number))
                else:
                    self.room.upload(number, f"status-{self.changes % 7}")
                self.changes += 1
                self._pause.wait(UPLOAD_SECONDS)
                after += self.is_attached.is_set()
        except BaseException as failure:
            self.failure = failure
            raise

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.start()
        try:
            yield
            self.is_attached.set()
            self.join()
        finally:
            self.is_attached.set()
        assert self.failure is None


def _session(room: Room) -> Session:
    store = S3Store(room.bucket, PREFIX, endpoint_url=room.endpoint_url)
    return Session(store, Settings(room.bucket, PREFIX, threads=4))


def _documents(room: Room) -> dict[str, dict[str, Any]]:
    """What any client reads: id and document."""
    pages = room.s3.get_paginator("list_objects_v2").paginate(Bucket=room.bucket, Prefix=f"{PREFIX}org/")
    keys = [one["Key"] for page in pages for one in page.get("Contents", []) if one["Key"].endswith("/profile.json")]
    return {
        key.split("/")[-2]: json.loads(room.s3.get_object(Bucket=room.bucket, Key=key)["Body"].read()) for key in keys
    }


def test_uploads_that_go_on_while_a_bucket_is_attached_are_all_recorded(
    moto_endpoint: str, aws_environment: None, tmp_path: Path
) -> None:
    """An upload between the listing of what is there and the first event would be in no history and no table."""
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    room = Room(moto_endpoint, new_bucket(moto_endpoint), documents=DOCUMENTS)
    documents = Queue(moto_endpoint, room.bucket, "capture", [{"wildcard": f"{PREFIX}org/*/profile.json"}])
    change_sets = Queue(moto_endpoint, room.bucket, "tables", [{"prefix": f"{PREFIX}.worm.changes/"}])
    capture, fold, uploader = Capture(_session(room)), Fold(_session(room)), Uploader(room)
    uploads_are_over, captured = threading.Event(), threading.Event()

    def work_on_documents() -> None:
        try:
            documents.work(capture.run, uploads_are_over.is_set)
        finally:
            captured.set()

    workers = [
        threading.Thread(target=work_on_documents),
        threading.Thread(target=change_sets.work, args=(fold.run, captured.is_set)),
    ]
    for worker in workers:
        worker.start()
    try:
        with uploader.at_work():
            answer = room.attach("--apply", "--push", str(schema))
    finally:
        uploads_are_over.set()
        for worker in workers:
            worker.join()
    assert (answer.code, answer.err) == (0, "")
    assert documents.handled > 0, "attach turned events on"
    Sweep(_session(room)).run(lambda: math.inf)

    verified = room.worm("verify", "--url", room.url, "--format", "json")
    assert verified.code == 0, verified.out
    session = _session(room)
    session.refresh()
    manifest = session.table("Customer").manifest.read()
    assert manifest is not None
    rows = {name: {"name": row["name"], "status": row["status"]} for name, row in manifest.entities.items()}
    assert rows == _documents(room)
    assert len(rows) > DOCUMENTS // 2
    assert room.attach().json["ready"] is True
