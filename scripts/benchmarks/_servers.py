"""S3 servers for benchmarks of many objects: moto or rclone, started with a directory of documents already loaded.

Uploading 100,000 documents takes minutes. moto gets them inside its own process before it answers
(`python -m scripts.benchmarks._servers DIRECTORY`); rclone serves the directory itself. Every directory below the first
level is a bucket. rclone is written in Go and answers several times as many requests with the same cores; it keeps no
versions and ignores conditions of writes, so nothing else may write to it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from worm.dev.aws import DUMMY_CREDENTIALS, stop_group
from worm.dev.cfn import ACCOUNT_ID

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 120.0
REGION = "us-east-1"
CREDENTIALS = {**DUMMY_CREDENTIALS, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}


@contextmanager
def serving(server: str, buckets: Path) -> Iterator[str]:
    """The url of the server, `moto` or `rclone`, with the buckets in it."""
    process, find_url = _started_moto(buckets) if server == "moto" else _started_rclone(buckets)
    try:
        yield find_url()
    finally:
        stop_group(process)


def requests_of(url: str) -> dict[str, int]:
    """The requests to moto so far, by kind."""
    with urllib.request.urlopen(f"{url}/_worm/requests", timeout=30) as response:
        by_role = cast("dict[str, dict[str, int]]", json.loads(response.read()))
    total: dict[str, int] = {}
    for counts in by_role.values():
        for kind, count in counts.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _started_moto(buckets: Path) -> tuple[subprocess.Popen[bytes], Callable[[], str]]:
    path = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.benchmarks._servers", str(buckets)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID, "PYTHONPATH": path},
        start_new_session=True,
    )

    def find_url() -> str:
        assert process.stdout is not None
        return f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"

    return process, find_url


def _started_rclone(buckets: Path) -> tuple[subprocess.Popen[bytes], Callable[[], str]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    rclone = Path(sys.executable).parent / "rclone"
    process = subprocess.Popen(
        [str(rclone), "serve", "s3", "--config", os.devnull, "--addr", address, str(buckets)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def find_url() -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with urllib.request.urlopen(f"http://{address}", timeout=5):
                    break
            except urllib.error.HTTPError:
                break  # it answers, even if it denies access
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
        return f"http://{address}"

    return process, find_url


def _serve_moto(buckets: Path) -> None:
    from moto.s3.models import s3_backends

    from worm.dev import moto_server

    backend = s3_backends[ACCOUNT_ID]["aws"]
    for bucket in sorted(buckets.iterdir()):
        backend.create_bucket(bucket.name, REGION)
        for directory, _, files in os.walk(bucket):
            for name in files:
                path = Path(directory, name)
                key = path.relative_to(bucket).as_posix()
                backend.put_object(bucket.name, key, path.read_bytes(), disable_notification=True)
    moto_server.main()


if __name__ == "__main__":
    _serve_moto(Path(sys.argv[1]))
