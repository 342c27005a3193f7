"""Makes the payloads of this folder again; README.md here says what each one is.

Needs scripts/setup --dev --tools --localstack. Run from the repository:  .venv/bin/python -m tests.events.make_events
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

from tests.emulators import CREDENTIALS, ROOT, localstack_server, plain_moto_server, s3_client

HERE = Path(__file__).resolve().parent
BUCKET = "worm-dev-documentbucket"
KEY = "org/invoices/acme/data.json"
SPACED_KEY = "org/invoices/acme corp/data.json"
DOCUMENT = b'{"customer": "0b9e8a52-6c1d-4f0e-9a57-3d1f6f0c2b11", "number": "2026-001", "amount": 120}'
WAIT_SECONDS = 20.0

Json = dict[str, Any]


def sam_event(*arguments: str) -> Json:
    """What `sam local generate-event` prints."""
    command = [str(ROOT / ".venv-tools" / "bin" / "sam"), "local", "generate-event", *arguments]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0"}
    text = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    event: Json = json.loads(text)
    return event


def in_queue(*bodies: str, worker: str = "capture") -> Json:
    """The bodies as Lambda gets them from a queue."""
    template = sam_event("sqs", "receive-message", "--queue-name", f"worm-{worker}")["Records"][0]
    records = []
    for number, body in enumerate(bodies, start=1):
        message_id = f"{number:08d}-0000-4000-8000-000000000000"
        digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
        records.append({**template, "messageId": message_id, "body": body, "md5OfBody": digest})
    return {"Records": records}


def eventbridge(kind: str, key: str, *, bucket: str = BUCKET, **detail: str) -> str:
    """An event as the S3 documentation shows it for EventBridge, on a versioned bucket."""
    described = {
        "key": key,
        "size": len(DOCUMENT),
        "etag": hashlib.md5(DOCUMENT, usedforsecurity=False).hexdigest(),
        "version-id": "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e",
        "sequencer": "00617F08299329D189",
    }
    if kind == "Object Deleted":
        del described["size"]
    event = {
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": kind,
        "source": "aws.s3",
        "account": "123456789012",
        "time": "2026-02-24T12:00:00Z",
        "region": "us-east-1",
        "resources": [f"arn:aws:s3:::{bucket}"],
        "detail": {
            "version": "0",
            "bucket": {"name": bucket},
            "object": described,
            "request-id": "N4N7GDK58NMKJ12R",
            "requester": "123456789012",
            "source-ip-address": "192.0.2.1",
            **detail,
        },
    }
    return json.dumps(event)


def created(key: str = KEY, *, bucket: str = BUCKET) -> str:
    return eventbridge("Object Created", key, bucket=bucket, reason="PutObject")


def deleted(key: str = KEY) -> str:
    marker = {"reason": "DeleteObject", "deletion-type": "Delete Marker Created"}
    return eventbridge("Object Deleted", key, **marker)


def removed(reason: str) -> str:
    """A version is removed for good."""
    return eventbridge("Object Deleted", KEY, **{"reason": reason, "deletion-type": "Permanently Deleted"})


def removed_notification() -> str:
    """The same as an S3 notification: `sam` makes one without a version."""
    event = sam_event("s3", "delete", "--bucket", BUCKET, "--key", KEY)
    event["Records"][0]["s3"]["object"]["versionId"] = "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e"
    return json.dumps(event)


@contextlib.contextmanager
def reachable_localstack() -> Iterator[str]:
    """LocalStack listens on ::1 only, but delivers events by calling itself as `localhost`, which may be 127.0.0.1.

    So the IPv4 loopback's port of the same number is passed on to it.
    """
    with localstack_server() as endpoint_url, socket.socket() as listener:
        port = urlsplit(endpoint_url).port
        listener.bind(("127.0.0.1", port))
        listener.listen()
        threading.Thread(target=_forward, args=(listener, port), daemon=True).start()
        yield endpoint_url


def _forward(listener: socket.socket, port: int | None) -> None:
    with contextlib.suppress(OSError):  # the listener was closed: we are done
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("::1", port or 0))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pipe, args=(source, sink), daemon=True).start()


def _pipe(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other direction was closed first
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Emulator:
    """A bucket on an emulator whose events end in a queue; `take` gives the next message's text."""

    def __init__(self, endpoint_url: str) -> None:
        session = boto3.Session(
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
        )
        self.s3 = s3_client(endpoint_url)
        self.sqs = session.client("sqs", endpoint_url=endpoint_url)
        self.events = session.client("events", endpoint_url=endpoint_url)
        self.s3.create_bucket(Bucket=BUCKET)
        self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.queue = self.sqs.create_queue(QueueName="events")["QueueUrl"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]
        self.queue_arn = attributes["QueueArn"]

    def by_eventbridge(self) -> None:
        pattern = {"source": ["aws.s3"], "detail-type": ["Object Created", "Object Deleted"]}
        self.events.put_rule(Name="all", EventPattern=json.dumps(pattern))
        self.events.put_targets(Rule="all", Targets=[{"Id": "queue", "Arn": self.queue_arn}])
        self.s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"EventBridgeConfiguration": {}}
        )

    def by_notification(self) -> None:
        self.s3.put_bucket_notification_configuration(
            Bucket=BUCKET,
            NotificationConfiguration={
                "QueueConfigurations": [
                    {"QueueArn": self.queue_arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
                ]
            },
        )

    def take(self) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            answer = self.sqs.receive_message(QueueUrl=self.queue, WaitTimeSeconds=1)
            for message in answer.get("Messages", []):
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
                return message["Body"]
        raise TimeoutError("the emulator sent no event")


def captured(name: str, server: Callable[[], AbstractContextManager[str]], *, deletes: bool) -> dict[str, Json]:
    """What an emulator really sends, by either way."""
    found = {}
    with server() as endpoint_url:
        emulator = Emulator(endpoint_url)
        emulator.by_notification()
        found[f"capture-s3-test-event-{name}"] = in_queue(emulator.take())
        emulator.s3.put_object(Bucket=BUCKET, Key=SPACED_KEY, Body=DOCUMENT)
        found[f"capture-s3-created-{name}"] = in_queue(emulator.take())
        emulator.by_eventbridge()
        emulator.s3.put_object(Bucket=BUCKET, Key=KEY, Body=DOCUMENT)
        found[f"capture-eventbridge-created-{name}"] = in_queue(emulator.take())
        if deletes:
            emulator.s3.delete_object(Bucket=BUCKET, Key=KEY)
            found[f"capture-eventbridge-deleted-{name}"] = in_queue(emulator.take())
    return found


def called(path: str, domain: str, authorizer: Json) -> Json:
    """A call as the Lambda user guide shows it for a Function URL, and that of API Gateway for an HTTP API."""
    context = {
        "accountId": "123456789012",
        "apiId": domain.partition(".")[0],
        "authentication": None,
        "authorizer": authorizer,
        "domainName": domain,
        "domainPrefix": domain.partition(".")[0],
        "http": {
            "method": "GET",
            "path": path,
            "protocol": "HTTP/1.1",
            "sourceIp": "203.0.113.7",
            "userAgent": "curl/8.5.0",
        },
        "requestId": "e1506fd5-9e7b-434f-bd42-4f8fa224b599",
        "routeKey": "$default",
        "stage": "$default",
        "time": "24/Feb/2026:12:00:00 +0000",
        "timeEpoch": 1771934400000,
    }
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {
            "accept": "application/json",
            "host": domain,
            "user-agent": "curl/8.5.0",
            "x-forwarded-proto": "https",
        },
        "requestContext": context,
        "isBase64Encoded": False,
    }


def calls() -> dict[str, Json]:
    arn = "arn:aws:sts::123456789012:assumed-role/Editor/ann"
    iam = {
        "accessKey": "ASIAEXAMPLE",
        "accountId": "123456789012",
        "callerId": "AROAEXAMPLE:ann",
        "cognitoIdentity": None,
        "principalOrgId": "o-example",
        "userArn": arn,
        "userId": "AROAEXAMPLE:ann",
    }
    claims = {
        "aud": "app-1",
        "exp": "1771938000",
        "iss": "https://issuer.example/pool",
        "scope": "openid read",
        "sub": "user-1",
    }
    return {
        "api-function-url": called("/v1/models", "abcdefg.lambda-url.us-east-1.on.aws", {"iam": iam}),
        "api-http-api-jwt": called(
            "/v1/models", "abc123.execute-api.us-east-1.amazonaws.com", {"jwt": {"claims": claims, "scopes": None}}
        ),
    }


def generated() -> dict[str, Json]:
    """What needs no emulator."""
    s3 = ("--bucket", BUCKET, "--key", KEY)
    change_set = ".worm.changes/invoices/01JMVT3Q00EXAMPLE0000000000.json"
    slot = f"{7:020d}"
    segments = [f"db/main/log/{slot}", f"db/main/branches/01JMVT3Q00EXAMPLE000000000/log/{slot}"]
    return {
        "capture-eventbridge-created": in_queue(created()),
        "capture-eventbridge-deleted": in_queue(deleted()),
        "capture-eventbridge-removed": in_queue(removed("DeleteObject"), removed("Lifecycle Expiration")),
        "capture-s3-removed": in_queue(removed_notification()),
        "capture-s3-put": in_queue(json.dumps(sam_event("s3", "put", *s3))),
        "capture-s3-delete": in_queue(json.dumps(sam_event("s3", "delete", *s3))),
        "capture-foreign-bucket": in_queue(created(bucket="somebody-elses-bucket")),
        "capture-mixed-batch": in_queue(created(), "this is not JSON", deleted("org/invoices/zeta/data.json")),
        "tables-eventbridge-change-set": in_queue(created(change_set), worker="tables"),
        "sweep-schedule": sam_event("cloudwatch", "scheduled-event"),
        "purge-schedule": sam_event("cloudwatch", "scheduled-event"),
        "apply-eventbridge-segments": in_queue(*map(created, segments), worker="apply"),
        "compact-schedule": sam_event("cloudwatch", "scheduled-event"),
        **calls(),
    }


def main() -> None:
    events = generated()
    events |= captured("moto", plain_moto_server, deletes=False)
    events |= captured("localstack", reachable_localstack, deletes=True)
    for name, event in events.items():
        (HERE / f"{name}.json").write_text(json.dumps(event, indent=2) + "\n")
        print(name)


if __name__ == "__main__":
    main()
