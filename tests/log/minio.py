"""MinIO on this machine for tests: one that is installed, or with `WORM_MINIO=build` one that Go builds from source.

A build takes some ten minutes on two cores, too long for every run of the suite. The binary is kept under build/minio;
what Go has compiled it keeps, so a build that ran out of time goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.emulators import ROOT

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MODULE = f"github.com/minio/minio@{VERSION}"
KEPT = ROOT / "build" / "minio" / VERSION / "minio"
BUILD_SECONDS_MAX = 590.0
START_SECONDS_MAX = 60.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-minio"}


class MinioMissing(Exception):
    """There is no MinIO, and why."""


def minio_binary() -> Path:
    """A `minio` of the machine, the one that was built before, or where that is asked for a new one."""
    found = shutil.which("minio")
    if found is not None:
        return Path(found)
    if KEPT.exists():
        return KEPT
    go = shutil.which("go")
    if go is None:
        raise MinioMissing("there is neither minio nor a Go toolchain to build it with")
    if os.environ.get("WORM_MINIO") != "build":
        raise MinioMissing("there is no minio; with WORM_MINIO=build the test has Go build it, in some ten minutes")
    command = ["nice", "-n", "5", go, "install", MODULE]
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(KEPT.parent), "GOFLAGS": "-buildvcs=false"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MinioMissing(f"building MinIO took more than {BUILD_SECONDS_MAX:.0f} s; the next run goes on") from error
    if done.returncode != 0:
        raise MinioMissing(f"MinIO could not be built: {done.stderr.strip()[-300:]}")
    return KEPT


@contextlib.contextmanager
def minio_server() -> Iterator[str]:
    """MinIO over an empty directory, on the loopback only."""
    binary = minio_binary()
    with tempfile.TemporaryDirectory(prefix="worm-minio-", ignore_cleanup_errors=True) as scratch:
        addresses = [f"127.0.0.1:{_free_port()}" for _ in range(2)]
        settings = {
            "MINIO_ROOT_USER": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "MINIO_ROOT_PASSWORD": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "MINIO_UPDATE": "off",
            "MINIO_BROWSER": "off",
            "HOME": scratch,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
        log = Path(scratch) / "minio.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [binary, "server", f"{scratch}/data", "--address", addresses[0], "--console-address", addresses[1]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited, **settings},
                start_new_session=True,
            )
        try:
            _wait_until_ready(process, f"http://{addresses[0]}/minio/health/ready", log)
            yield f"http://{addresses[0]}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise AssertionError(f"MinIO did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
