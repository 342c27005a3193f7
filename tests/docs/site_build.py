"""Builds the documentation site, strictly and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import ROOT

BUILD = """
import socket, sys
def refuse(*args):
    raise OSError("the build of the site must not use the network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


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
