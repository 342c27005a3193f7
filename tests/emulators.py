"""Object stores on this machine for tests: moto, LocalStack and rclone, each a process of its own on the loopback.

Each helper is a context manager that yields the endpoint's url and ends its process, by its id, on the way out; a
session fixture enters it once. `new_bucket` makes a fresh bucket, so tests share a server and no data.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ROOT = Path(__file__).resolve().parent.parent
LOCALSTACK_PYTHON = ROOT / ".venv-localstack" / "bin" / "python"
START_SECONDS = 90.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


class EmulatorMissing(AssertionError):
    """An emulator is not installed: a failure of the test, not a reason to skip it."""


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """The moto of the embedded AWS: its own server lists versions out of order, lets two writers win now and then, and
    waits after each answer."""
    from worm.dev.aws import start_moto  # here: the environment of EMR's Spark, which has none of it, starts nothing

    with tempfile.TemporaryDirectory(prefix="worm-moto-") as scratch:
        aws = start_moto(Path(scratch), CREDENTIALS["AWS_DEFAULT_REGION"])
        try:
            yield aws.endpoint_url
        finally:
            aws.stop()


@contextlib.contextmanager
def plain_moto_server() -> Iterator[str]:
    """moto's own server; the port is the system's choice."""
    with tempfile.TemporaryDirectory(prefix="worm-moto-") as scratch:
        log = Path(scratch) / "moto.log"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with _process(command, log, {}) as process:
            port = _wait_for_port(process, log, re.compile(r"Running on http://127\.0\.0\.1:(\d+)"))
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def localstack_server() -> Iterator[str]:
    """LocalStack with S3, SQS and EventBridge, bound to the IPv6 loopback only, without DNS or telemetry."""
    if not LOCALSTACK_PYTHON.exists():
        raise EmulatorMissing("LocalStack is not installed in .venv-localstack; run scripts/localstack-setup")
    port = _free_port(socket.AF_INET6, "::1")
    with tempfile.TemporaryDirectory(prefix="worm-localstack-", ignore_cleanup_errors=True) as scratch:
        log = Path(scratch) / "localstack.log"
        settings = {
            "GATEWAY_LISTEN": f"[::1]:{port}",
            "SERVICES": "s3,sqs,events",
            "STRICT_SERVICE_LOADING": "1",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            # Else all of a machine write one file in /var/lib, and of two that start at once one may read half of it.
            "CUSTOM_SSL_CERT_PATH": f"{scratch}/server.pem",
            "DNS_ADDRESS": "0",
            "HOME": scratch,
            "TMPDIR": scratch,
            "FILESYSTEM_ROOT": scratch,
        }
        command = [str(LOCALSTACK_PYTHON), "-m", "localstack.runtime.main"]
        with _process(command, log, settings) as process:
            url = f"http://[::1]:{port}"
            _wait_for_http(process, log, f"{url}/_localstack/health")
            yield url


@contextlib.contextmanager
def rclone_server(buckets: Sequence[str] = ("probe",)) -> Iterator[str]:
    """`rclone serve s3` over an empty directory: an S3 that ignores every write condition."""
    rclone = Path(sys.executable).parent / "rclone"
    if not rclone.exists():
        raise EmulatorMissing("rclone is not installed; run scripts/setup --dev")
    port = _free_port(socket.AF_INET, "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="worm-rclone-") as scratch:
        root, log = Path(scratch) / "buckets", Path(scratch) / "rclone.log"
        for name in buckets:
            (root / name).mkdir(parents=True)
        command = [str(rclone), "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}", str(root)]
        with _process(command, log, {}) as process:
            url = f"http://127.0.0.1:{port}"
            _wait_for_http(process, log, url)
            yield url


@cache
def s3_client(endpoint_url: str) -> S3Client:
    """A plain boto3 client, as the world outside this library uses it; making one takes longer than most calls do."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 2}),
    )


def new_bucket(endpoint_url: str, *, versioned: bool = False) -> str:
    """The name of a fresh bucket."""
    client, name = s3_client(endpoint_url), f"worm-{uuid.uuid4().hex[:20]}"
    client.create_bucket(Bucket=name)
    if versioned:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a session of its own, so that its children end with it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, "PYTHONUNBUFFERED": "1", **settings},
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=5)


def _wait_for_port(process: subprocess.Popen[bytes], log: Path, announced: re.Pattern[str]) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = announced.search(log.read_text(errors="replace"))
        if found:
            return int(found.group(1))
        _check_alive(process, log)
        time.sleep(0.02)
    raise AssertionError(f"no port was announced within {START_SECONDS} s:\n{log.read_text(errors='replace')[-2000:]}")


def _wait_for_http(process: subprocess.Popen[bytes], log: Path, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            _check_alive(process, log)
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within {START_SECONDS} s:\n{log.read_text(errors='replace')[-2000:]}")


def _check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise AssertionError(f"{process.args!r} ended with {process.returncode}:\n{log.read_text()[-2000:]}")


def _free_port(family: socket.AddressFamily, address: str) -> int:
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
