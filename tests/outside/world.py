"""The bucket of an embedded AWS as the world outside sees it: clients of other people, and the checker that watches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.outside.checker import Checker, Version
from worm.dev.environment import Environment
from worm.dev.worker import OutcomeKind

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / ".venv-clients" / "bin"
PATIENCE_SECONDS = 90
COMMAND_SECONDS = 60


@dataclass
class Outside:
    """A bucket as the world outside sees it. Nothing here but `sweep` and `worm` uses this library."""

    environment: Environment
    s3: S3Client
    scratch: Path
    checker: Checker = field(init=False)
    reported: set[str] = field(default_factory=set)
    hopeless: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.checker = Checker(self.s3, self.bucket)

    @property
    def bucket(self) -> str:
        return self.environment.bucket

    # Clients

    def run(self, command: Sequence[str | Path], stdin: str = "", variables: Mapping[str, str] | None = None) -> str:
        """What the command printed. It sees the endpoint and nothing of the user's own settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
        settings = {**self.environment.environment, "HOME": str(self.scratch), "AWS_CONFIG_FILE": os.devnull}
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            env={**inherited, **settings, **(variables or {})},
            cwd=self.scratch,
            text=True,
            capture_output=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def aws(self, *arguments: str, stdin: str = "") -> str:
        """awscli; `s3://` alone is the bucket."""
        return self.run([CLIENTS / "aws", *(self._url(one) for one in arguments)], stdin)

    def s3cmd(self, *arguments: str) -> str:
        host, config = self.environment.endpoint_url.removeprefix("http://"), self.scratch / "s3cfg"
        lines = ["[default]", "access_key = test", "secret_key = test", f"host_base = {host}", f"host_bucket = {host}"]
        config.write_text("\n".join([*lines, "use_https = False", "check_ssl_certificate = False"]))
        command: list[str | Path] = [CLIENTS / "s3cmd", "--config", config, "--no-progress"]
        return self.run([*command, *(self._url(one) for one in arguments)])

    def rclone(self, *arguments: str) -> str:
        """rclone; `r:` alone is the bucket."""
        remote = {
            "TYPE": "s3",
            "PROVIDER": "Minio",  # that of AWS demands TLS
            "ENV_AUTH": "true",
            "REGION": "us-east-1",
            "ENDPOINT": self.environment.endpoint_url,
            "FORCE_PATH_STYLE": "true",
        }
        variables = {f"RCLONE_CONFIG_R_{name}": value for name, value in remote.items()}
        named = [one.replace("r:", f"r:{self.bucket}/", 1) if one.startswith("r:") else one for one in arguments]
        command: list[str | Path] = [Path(sys.executable).parent / "rclone", "--config", os.devnull, "--retries", "1"]
        return self.run([*command, *named], variables=variables)

    def drive(self, *calls: tuple[str, str, Sequence[object]]) -> None:
        """Calls of s3fs and minio."""
        self.run([CLIENTS / "python", Path(__file__).parent / "driver.py"], stdin=json.dumps(calls))

    def _url(self, argument: str) -> str:
        return argument.replace("s3://", f"s3://{self.bucket}/", 1) if argument.startswith("s3://") else argument

    # What plain requests do

    def put(self, key: str, document: object, **options: Any) -> str:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        written = self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **options)
        return written.get("VersionId", "null")

    def delete(self, key: str, version_id: str | None = None) -> str:
        named: dict[str, Any] = {} if version_id is None else {"VersionId": version_id}
        return self.s3.delete_object(Bucket=self.bucket, Key=key, **named).get("VersionId", "null")

    def folder(self, name: str, files: Mapping[str, object]) -> Path:
        """A local directory with these documents, a minute old: S3 tells times in whole seconds, and `aws s3 sync`
        uploads a file again that looks newer than its object."""
        written = time.time() - 60
        for path, document in files.items():
            target = self.scratch / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
            os.utime(target, (written, written))
        return self.scratch / name

    # Looking

    def settle(self, *, tables_complete: bool = True, dead_letters: Sequence[str] = ()) -> None:
        """Once the queues are quiet everything is right, without any help of the sweep."""
        self.environment.wait_quiet(PATIENCE_SECONDS)
        assert self.new_problems(tables_complete=tables_complete) == []
        assert self.rejected() == sorted(dead_letters)

    def sweep(self) -> None:
        """A sweep changes nothing that is right, and what it completes is right."""
        outcome = self.environment.invoke("sweep", {})
        assert outcome.kind is OutcomeKind.OK, outcome.error
        self.environment.wait_quiet(PATIENCE_SECONDS)
        assert self.new_problems() == []
        self.worm("verify")

    def worm(self, *arguments: str) -> str:
        """Our own command."""
        return self.run([Path(sys.executable).parent / "worm", *arguments, "--url", f"s3://{self.bucket}"])

    def new_problems(self, *, tables_complete: bool = True) -> list[str]:
        """What is wrong, each problem once: the bucket is shared, and one failure is to name one test."""
        found = self.checker.problems(tables_complete=tables_complete)
        new = [problem for problem in found if problem not in self.reported]
        self.reported.update(new)
        return new

    def rejected(self) -> list[str]:
        """The keys of the dead letters, but for those that can never be anything else."""
        letters = [json.loads(letter["Body"]) for letter in self.environment.dlq_messages("capture")]
        assert self.environment.dlq_messages("tables") == []
        return sorted({letter["detail"]["object"]["key"] for letter in letters} - self.hopeless)

    def versions(self, key: str) -> list[Version]:
        """Oldest first, as of now."""
        self.checker.bucket.look()
        return self.checker.bucket.versions.get(key, [])

    def history(self, folder: str) -> list[str]:
        """The ops of the entries under `.oplog/<folder>/`."""
        keys = [key for key in self.checker.bucket.keys(f".oplog/{folder}/") if "/.times/" not in key]
        return [json.loads(self.checker.bucket.body(key) or b"{}")["op"] for key in keys]

    def rows(self, collection: str) -> dict[str, object]:
        """The rows of a manifest that is one file."""
        body = self.checker.bucket.body(f"org/{collection}/.worm.manifest.json")
        assert body is not None
        rows: dict[str, object] = json.loads(body)["entities"]
        return rows


def require_clients(folder: Path, *, is_ci: bool) -> None:
    """Skip the test where there are no clients; in CI fail, or nobody would notice that nothing was tested."""
    if not (folder / "aws").exists():
        missing = "the S3 clients are not installed in .venv-clients; run scripts/setup --clients"
        assert not is_ci, missing
        pytest.skip(missing)
