"""Windows, as Python without `fcntl` and forks: a bucket works, and a directory is refused with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, new_bucket

AS_ON_WINDOWS = """
import os, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "killpg", "fchmod", "fchown", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK"):
    delattr(os, name)
"""
BUCKET = """
import worm

class Customer(worm.Document):
    name: str

with worm.connect({url!r}, models=[Customer]) as db:
    db.push()
    customers = db.model(Customer)
    customers.insert(Customer(id="acme", name="Acme Corp"))
    print([one.name for one in customers.find_all()], len(customers.get_history("acme")))
"""
EVERY_MODULE = """
import importlib, pkgutil
import worm

for found in pkgutil.walk_packages(worm.__path__, "worm."):
    try:
        importlib.import_module(found.name)
    except worm.WormError as error:
        print(found.name)
"""
POSIX_ONLY = {
    "worm.log.journal": ["file", "pack", "store", "tools"],
    "worm.store": ["file", "posix", "tree", "wal"],
}
REFUSED = (
    "a directory as a store needs the file locks of Linux or macOS, which this system lacks"
    " (use WSL, or a bucket (s3://bucket))"
)


def _run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **variables},
    )


def test_no_module_fails_to_load_but_those_of_a_directory() -> None:
    ended = _run(EVERY_MODULE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [f"{room}.{name}" for room, names in POSIX_ONLY.items() for name in names]


@pytest.mark.parametrize("url", ["./data", "file:///tmp/data"])
def test_a_directory_is_refused(url: str, tmp_path: Path) -> None:
    ended = _run(f"import worm\ntry:\n    worm.connect({url!r})\nexcept worm.Invalid as error:\n    print(error)\n")
    assert (ended.stdout.strip(), ended.returncode) == (REFUSED, 0), ended.stderr


@pytest.mark.parametrize("arguments", [["table", "list"], ["log", "list"], ["pack", "data", "data.worm"]])
def test_a_command_on_a_directory_is_refused(arguments: list[str]) -> None:
    ended = _run(f"sys.argv[1:] = {arguments!r}\nfrom worm.cli.main import main\nmain()\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"worm: {REFUSED}\n")


def test_documents_in_memory_work() -> None:
    ended = _run(BUCKET.format(url="memory://windows"))
    assert (ended.stdout, ended.stderr) == ("['Acme Corp'] 1\n", "")


@pytest.mark.slow
def test_documents_in_a_bucket_work(moto_endpoint: str) -> None:
    bucket = new_bucket(moto_endpoint)
    ended = _run(BUCKET.format(url=f"s3://{bucket}"), AWS_ENDPOINT_URL=moto_endpoint, **CREDENTIALS)
    assert (ended.stdout, ended.stderr) == ("['Acme Corp'] 1\n", "")
