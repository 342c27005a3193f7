"""A new user follows the first tutorial word for word, with nothing but Python, an empty directory and the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.following import Desk, follow
from tests.docs.markdown import ROOT
from worm.version import VERSION

PAGE = ROOT / "docs" / "tutorials" / "five-minutes.md"
SECONDS_MAX = 300.0


def built_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


def stranger(wheel: Path) -> dict[str, str]:
    """A shell where only the wheel of this project can be installed; pip finds it as it would on an index."""
    kept = {
        name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_")) or "PROXY" in name.upper()
    }
    return kept | {
        "BROWSER": "true",
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join((f"{sys.base_prefix}/bin", "/usr/bin", "/bin")),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_FIND_LINKS": f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}".strip(),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stranger_gets_from_pip_install_to_the_console(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    environment = stranger(built_wheel(tmp_path / "dist"))
    printed = follow(PAGE, Desk(desk, environment, block_seconds_max=SECONDS_MAX))
    (folder,) = desk.glob(".venv/lib/python3*/site-packages/worm")
    assert f"s3worm-{VERSION}" in printed[0]
    assert (folder / "py.typed").is_file()
