"""Where the embedded AWS runs: moto (default), LocalStack, or an endpoint that already runs.

An `Aws` has an endpoint, credentials and, for moto, the extras of moto_server.py (request counts, fault policy, pending
deliveries). Processes started here are stopped by their process group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import boto3
from botocore.config import Config

from worm.dev.cfn import ACCOUNT_ID
from worm.dev.faults import FaultPolicy
from worm.dev.iam import Call, calls_from
from worm.dev.specs import PACKAGE_FOLDER
from worm.errors import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient

LOCALSTACK_START_SECONDS_MAX = 120.0
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
DUMMY_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# Loopback polls every queue and every worker at once; retries of a dev tool must not hide a dead emulator for long.
_CLIENT_CONFIG = Config(max_pool_connections=32, retries={"mode": "standard", "total_max_attempts": 3})


@dataclass
class Aws:
    """A running AWS-like endpoint."""

    endpoint_url: str
    region: str
    credentials: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    is_moto: bool = False
    settle_seconds: float = 0.2
    _log: IO[bytes] | None = field(default=None, repr=False)

    def environment(self) -> dict[str, str]:
        """Variables that make any AWS SDK talk to this endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            **self.credentials,
        }

    def in_role(self, name: str) -> Aws:
        """The same endpoint with credentials of this role: on AWS, each role has its own credentials, too."""
        if not self.is_moto:
            return self  # real credentials belong to somebody
        return replace(self, credentials={**self.credentials, "AWS_ACCESS_KEY_ID": name}, process=None, _log=None)

    def _session(self) -> boto3.session.Session:
        return boto3.session.Session(
            aws_access_key_id=self.credentials.get("AWS_ACCESS_KEY_ID"),
            aws_secret_access_key=self.credentials.get("AWS_SECRET_ACCESS_KEY"),
            aws_session_token=self.credentials.get("AWS_SESSION_TOKEN"),
            region_name=self.region,
        )

    def s3(self) -> S3Client:
        config = _CLIENT_CONFIG.merge(Config(s3={"addressing_style": "path"}))
        return self._session().client("s3", endpoint_url=self.endpoint_url, config=config)

    def sqs(self) -> SQSClient:
        return self._session().client("sqs", endpoint_url=self.endpoint_url, config=_CLIENT_CONFIG)

    def events(self) -> EventBridgeClient:
        return self._session().client("events", endpoint_url=self.endpoint_url, config=_CLIENT_CONFIG)

    def requests_by_role(self) -> dict[str, dict[str, int]]:
        """S3 requests by role and kind; empty if the endpoint does not count them."""
        if not self.is_moto:
            return {}
        return cast("dict[str, dict[str, int]]", self._internal("requests"))

    def deliveries(self) -> dict[str, int]:
        """Events emitted, dropped and pending; zeros if the endpoint does not report them."""
        if not self.is_moto:
            return {"events": 0, "dropped": 0, "pending": 0}
        return cast("dict[str, int]", self._internal("deliveries"))

    def set_faults(self, policy: FaultPolicy) -> None:
        """From now on events are delivered as the policy says."""
        if not self.is_moto:
            raise Unavailable("delivery faults need the moto endpoint")
        self._internal("faults", json.dumps(asdict(policy)).encode())

    def date_back(self, bucket: str, key: str, days: float) -> None:
        """Make the object this much older in listings, so that effects of time can be shown at once."""
        if not self.is_moto:
            raise Unavailable("backdating objects needs the moto endpoint")
        self._internal("age", json.dumps({"bucket": bucket, "key": key, "days": days}).encode())

    def record(self, roles: Iterable[str]) -> None:
        """From now on keep the calls of these roles, for `calls`."""
        if not self.is_moto:
            raise Unavailable("recording calls needs the moto endpoint")
        self._internal("record", json.dumps(sorted(roles)).encode())

    def calls(self) -> set[Call]:
        """The calls since `record`, each kind of call to each key once."""
        return calls_from(cast("list[object]", self._internal("calls")))

    def _internal(self, path: str, body: bytes | None = None) -> object:
        with urllib.request.urlopen(f"{self.endpoint_url}/_worm/{path}", data=body, timeout=30) as response:
            return cast("object", json.loads(response.read()))

    def stop(self) -> None:
        if self.process is not None:
            stop_group(self.process)
            self.process = None
        if self._log is not None:
            self._log.close()
            self._log = None


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of the process and its children (its own group), then reaps it. These processes have no state to save."""
    if process.returncode is None:  # not reaped yet, so the group id is still ours
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait()


def start_moto(work_dir: Path, region: str, *, host: str = LOOPBACK, port: int = 0) -> Aws:
    """moto with its gaps filled, in its own process (so that it does not hold this interpreter's lock). Port 0 picks a
    free port."""
    log = (work_dir / "moto.log").open("wb")
    environment = {**os.environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID, "PYTHONPATH": str(PACKAGE_FOLDER), **DUMMY_CREDENTIALS}
    process = subprocess.Popen(
        [sys.executable, "-m", "worm.dev.moto_server", host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        stop_group(process)
        log.close()
        text = (work_dir / "moto.log").read_text(errors="replace")[-2000:]
        raise Unavailable(f"moto did not start:\n{text}", hint="pip install 's3worm[dev]'")
    told = json.loads(line)
    if "error" in told:
        stop_group(process)
        log.close()
        hint = "stop the process that listens there, or choose another --port"
        raise Unavailable(f"nothing can listen on {host}, port {port}: {told['error']}", hint=hint)
    endpoint = f"http://{reached_at(host)}:{told['port']}"
    return Aws(endpoint, region, DUMMY_CREDENTIALS, process, is_moto=True, _log=log)


def reached_at(host: str) -> str:
    """The address at which this machine reaches what listens on `host`."""
    return LOOPBACK if host == EVERYWHERE else host


def start_localstack(work_dir: Path, region: str, venv: Path) -> Aws:
    """LocalStack from its own virtual environment (scripts/localstack-setup makes it)."""
    python = venv / "bin" / "python"
    if not python.exists():
        hint = "run scripts/localstack-setup in a checkout, or name a LocalStack that runs with --endpoint-url"
        raise Unavailable(f"LocalStack is not installed in {venv.name}", hint=hint)
    port = _free_port_v6()
    endpoint = f"http://[::1]:{port}"
    data = work_dir / "localstack"
    data.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    environment = {
        **inherited,
        # 127.0.0.1 would be widened to every interface; [::1] stays on loopback.
        "GATEWAY_LISTEN": f"[::1]:{port}",
        "SERVICES": "s3,sqs,events",
        "STRICT_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DNS_ADDRESS": "0",
        # Its services call each other at "localhost", where nothing may listen on [::1]: let them call in memory.
        "IN_MEMORY_CLIENT": "1",
        "HOME": str(data),
        "TMPDIR": str(data),
        "FILESYSTEM_ROOT": str(data),
    }
    log = (work_dir / "localstack.log").open("wb")
    process = subprocess.Popen(
        [str(python), "-m", "localstack.runtime.main"],
        cwd=data,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    aws = Aws(endpoint, region, DUMMY_CREDENTIALS, process, settle_seconds=2.0, _log=log)
    try:
        _wait_for_localstack(aws, work_dir / "localstack.log")
    except BaseException:
        aws.stop()
        raise
    return aws


def _wait_for_localstack(aws: Aws, log: Path) -> None:
    deadline = time.monotonic() + LOCALSTACK_START_SECONDS_MAX
    while time.monotonic() < deadline:
        if aws.process is None or aws.process.poll() is not None:
            break
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"{aws.endpoint_url}/_localstack/health", timeout=2) as response:
                services = json.loads(response.read())["services"]
            if all(services.get(name) in ("available", "running") for name in ("s3", "sqs", "events")):
                return
        time.sleep(0.2)
    raise Unavailable(f"LocalStack did not start:\n{log.read_text(errors='replace')[-2000:]}")


def existing_endpoint(endpoint_url: str, region: str) -> Aws:
    """An endpoint somebody else runs, with the credentials of this process's environment (dummies otherwise)."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    found = {name: os.environ[name] for name in names if name in os.environ}
    return Aws(endpoint_url, region, found or DUMMY_CREDENTIALS, settle_seconds=2.0)


def _free_port_v6() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::1", 0))
        port: int = probe.getsockname()[1]
        return port
