"""`worm dev`: the embedded AWS for another shell."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from worm.dev import demo
from worm.sdk.database import connect

ROOT = Path(__file__).resolve().parents[2]
WORM = Path(sys.executable).with_name("worm")
START_SECONDS = 60.0


class Served:
    """A running `worm dev` and what it printed so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.text = ""

    def read_until(self, wanted: str, timeout_seconds: float) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while wanted not in self.text and time.monotonic() < deadline:
                if selector.select(timeout=1.0):
                    piece = os.read(self.process.stdout.fileno(), 65536)
                    assert piece, f"it ended: {self.text}"
                    self.text += piece.decode()
        assert wanted in self.text
        return self.text


@pytest.fixture
def served() -> Iterator[Served]:
    # A session of its own: what is left of it, if anything, can be found and is not this test's.
    process = subprocess.Popen(
        [str(WORM), "dev"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
    )
    try:
        yield Served(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_another_shell_uses_what_it_prints_and_ctrl_c_ends_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    text = served.read_until("press Ctrl-C to stop; nothing is kept\n", START_SECONDS)
    exports = dict(re.findall(r"^  export (\w+)=(\S+)$", text, flags=re.MULTILINE))
    exports.pop("PATH", None)  # printed where the shell would not find the command
    assert set(exports) == {
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "WORM_URL",
        "WORM_MAINTENANCE",
    }
    assert exports["WORM_MAINTENANCE"] == "events"
    for name, value in exports.items():
        monkeypatch.setenv(name, value)
    upload = re.search(r"s3://([\w-]+)/(org/customers/\S+/profile\.json)|Bucket=\"([\w-]+)\", Key=\"(\S+)\"", text)
    assert upload is not None
    bucket, key = upload[1] or upload[3], upload[2] or upload[4]
    console = re.search(
        r"^the console for this bucket: (http://127\.0\.0\.1:\d+)/#token=(\w+)$", text, flags=re.MULTILINE
    )
    assert console is not None
    asked = urllib.request.Request(f"{console[1]}/v1/models", headers={"Authorization": f"Bearer {console[2]}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert "Customer" in {one["name"] for one in json.load(answer)["items"]}
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=b'{"name": "Acme Corp", "status": "active"}')
    served.read_until("tables: ", 30.0)
    rows = connect(exports["WORM_URL"]).model("Customer").find_all(select=["name", "status"])
    assert rows == [{"id": key.split("/")[2], "name": "Acme Corp", "status": "active"}]
    logs = re.search(r"logs in (\S+)$", text, flags=re.MULTILINE)
    assert logs is not None
    assert (Path(logs[1]) / "capture.log").exists()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=60) == 0
    assert not Path(logs[1]).exists()


def test_scripts_run_with_serve_is_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it ends with the address of the console, as `worm dev` does."""
    begun: list[dict[str, object]] = []

    def serve(**options: object) -> int:
        begun.append(options)
        return 0

    monkeypatch.setattr(demo, "serve", serve)
    assert demo.main(["--serve", "--documents", "3"]) == 0
    assert begun == [{"aws": "moto", "endpoint_url": None, "documents": 3, "fire": None}]
