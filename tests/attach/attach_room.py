"""An existing bucket of somebody else on moto, the command as a function, and a proxy that denies single calls."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from typer.testing import CliRunner

from tests.emulators import new_bucket, s3_client
from tests.fault_proxy import FaultProxy, Reply, Seen, _Handler
from tests.harness import schema_of
from worm.cli.program import app

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SCHEMA = schema_of()
_REFUSED = b"<Error><Code>AccessDenied</Code><Message>by policy</Message></Error>"
_OPTIONS = {
    "put-bucket-versioning": {"--versioning-configuration": "VersioningConfiguration"},
    "put-bucket-notification-configuration": {"--notification-configuration": "NotificationConfiguration"},
    "put-bucket-lifecycle-configuration": {
        "--lifecycle-configuration": "LifecycleConfiguration",
        "--transition-default-minimum-object-size": "TransitionDefaultMinimumObjectSize",
    },
    "put-bucket-policy": {"--policy": "Policy"},
    "put-bucket-encryption": {"--server-side-encryption-configuration": "ServerSideEncryptionConfiguration"},
    "put-object-lock-configuration": {"--object-lock-configuration": "ObjectLockConfiguration"},
    "put-bucket-ownership-controls": {"--ownership-controls": "OwnershipControls"},
}


@dataclass
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def states(self, setting: str) -> list[str]:
        return [one["state"] for one in self.json["findings"] if one["setting"] == setting]

    def reasons(self, setting: str) -> str:
        return "\n".join(one["reason"] for one in self.json["findings"] if one["setting"] == setting)


@dataclass
class Room:
    """A bucket with documents below `data/`, unknown to this library."""

    endpoint_url: str
    bucket: str = ""
    documents: int = 3
    s3: S3Client = field(init=False)

    def __post_init__(self) -> None:
        self.s3 = s3_client(self.endpoint_url)
        self.bucket = self.bucket or new_bucket(self.endpoint_url)
        for number in range(self.documents):
            self.upload(number, "active")

    def upload(self, number: int, status: str) -> None:
        body = json.dumps({"name": f"n{number}", "status": status}).encode()
        self.s3.put_object(Bucket=self.bucket, Key=self.key(number), Body=body)

    def key(self, number: int) -> str:
        return f"data/org/customers/c{number:04}/profile.json"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/data"

    def worm(self, *arguments: str, endpoint_url: str | None = None) -> Answer:
        """The command, in this process."""
        given = [*arguments, "--endpoint-url", endpoint_url or self.endpoint_url]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        return Answer(result.exit_code, result.stdout, result.stderr)

    def attach(self, *options: str, url: str = "", endpoint_url: str | None = None) -> Answer:
        given = ("attach", url or self.url, "--settle", "0", "--format", "json", *options)
        return self.worm(*given, endpoint_url=endpoint_url)

    def detach(self, *options: str, url: str = "", endpoint_url: str | None = None) -> Answer:
        return self.worm("detach", url or self.url, "--format", "json", *options, endpoint_url=endpoint_url)

    def settings(self) -> dict[str, Any]:
        """What attach may change, as any client reads it."""
        s3, bucket = self.s3, self.bucket
        found: dict[str, Any] = {
            "versioning": s3.get_bucket_versioning(Bucket=bucket).get("Status"),
            "notification": s3.get_bucket_notification_configuration(Bucket=bucket),
            "lifecycle": _or_none(lambda: s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]),
            "policy": _or_none(lambda: json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])),
        }
        del found["notification"]["ResponseMetadata"]
        return found

    def run_printed(self, command: str) -> None:
        """A printed command, carried out by boto3 as the AWS CLI would: the JSON of its options are the parameters."""
        words = shlex.split(command)
        assert words[:2] == ["aws", "s3api"], command
        options = dict(zip(words[3::2], words[4::2], strict=True))
        assert options.pop("--bucket") == self.bucket
        assert options.pop("--region") == "us-east-1"
        assert options.pop("--endpoint-url") == self.endpoint_url
        known = _OPTIONS[words[2]]
        sent = {known[name]: _value(known[name], text) for name, text in options.items()}
        getattr(self.s3, words[2].replace("-", "_"))(Bucket=self.bucket, **sent)


def _value(parameter: str, text: str) -> Any:
    return text if parameter in ("Policy", "TransitionDefaultMinimumObjectSize") else json.loads(text)


def _or_none(call: Any) -> Any:
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("NoSuch"):
            raise
        return None


class Denying(FaultProxy):
    """Answers 403 to requests of a method with a subresource (`GET versioning`) or a part of a key (`PUT .worm.`)."""

    def __init__(self, upstream: str, *denied: str) -> None:
        super().__init__(upstream)
        self.denied = [tuple(one.split(" ", 1)) for one in denied]
        self.writes: list[str] = []

    def handle(self, handler: _Handler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts = urlsplit(handler.path)
        asked = parse_qs(parts.query, keep_blank_values=True)
        is_denied = any(
            handler.command == method and (what in asked or (what not in asked and what in parts.path))
            for method, what in self.denied
        )
        if handler.command in ("PUT", "DELETE") and not is_denied:
            self.writes.append(f"{handler.command} {handler.path}")
        reply = Reply(403, {"Content-Type": "application/xml"}, b"" if handler.command == "HEAD" else _REFUSED)
        if not is_denied:
            headers = dict(handler.headers.items())
            reply = self._forward(handler.path, Seen(handler.command, handler.path, False), headers, body)
        handler.send(reply, is_cut=False)
