"""Builds the documentation site, strictly and without a network."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

BUILD = """
import socket, sys
def refuse(*args):
    raise OSError("the build of the site must not use the network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


def shared_site(factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of a run."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = root / "site"
    with (root / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build_site(root / "site-unfinished").rename(folder)
    return folder


def build_site(folder: Path) -> Path:
    """The folder, with the site in it."""
    built = subprocess.run(
        [sys.executable, "-c", BUILD, "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stdout) == (0, ""), built.stderr
    return folder
