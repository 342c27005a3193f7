"""The distribution, built and installed into new environments.

`pip` installs from files only, so that it needs the package index once, for the largest extra. What is too large to be
copied for a test (Spark, Arrow) is *linked*: the environment gets links to exactly those distributions of `.venv` that
the metadata of the wheel asks for, directly or not. A package that an extra forgets is missing there, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
SHARED = "arro3"
"""A package that several distributions make together."""
_OWN = ("AWS_", "PIP_NO_", "PYTHON", "WORM_")
DOWNLOADED = "dev"
CONSTRAINTS = "files.txt"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@dataclass(frozen=True)
class Built:
    """`wheel` was made from the unpacked sdist, `direct` from the checkout."""

    sdist: Path
    wheel: Path
    direct: Path

    def names(self) -> list[str]:
        return _files(self.wheel)

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
            return Parser().parsestr(archive.read(name).decode())


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and one extra."""

    folder: Path
    site: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def worm(self) -> Path:
        return self.folder / "bin" / "worm"

    def run(self, *command: str | Path, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(one) for one in command],
            cwd=cwd,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def variables(self) -> dict[str, str]:
        """The environment variables of a shell in which the environment is active."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        return kept | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def distributions(self) -> set[str]:
        names = "import importlib.metadata as m; print(*(one.name for one in m.distributions()))"
        return {canonicalize_name(one) for one in self.run(self.python, "-c", names, cwd=self.folder).stdout.split()}

    def megabytes(self) -> float:
        """The size of site-packages without bytecode, including linked files."""
        found = (Path(path) / name for path, _, names in os.walk(self.site, followlinks=True) for name in names)
        return sum(one.stat().st_size for one in found if one.suffix != ".pyc") / 1e6


def build(folder: Path) -> Built:
    """Without a network: the backend is in `.venv`."""
    command = [sys.executable, "-m", "build", "--no-isolation"]
    _checked([*command, "--outdir", folder / "both", ROOT])  # the wheel from the sdist
    _checked([*command, "--wheel", "--outdir", folder / "direct", ROOT])
    (sdist,), (wheel,) = (folder / "both").glob("*.tar.gz"), (folder / "both").glob("*.whl")
    (direct,) = (folder / "direct").glob("*.whl")
    return Built(sdist, wheel, direct)


def download(wheel: Path, folder: Path) -> Path:
    """The folder, with what pip finds to be the dependencies of the largest extra, and constraints that name these
    files."""
    pins = str(ROOT / "constraints.txt")
    _checked([*PIP, "download", "--constraint", pins, "--dest", folder, f"{wheel}[{DOWNLOADED}]"])
    files = {parse_wheel_filename(one.name)[0]: one.as_uri() for one in folder.glob("*.whl") if one.name != wheel.name}
    (folder / CONSTRAINTS).write_text("".join(f"{name} @ {uri}\n" for name, uri in files.items()))
    return folder


def installed(wheel: Path, extra: str, files: Path, folder: Path) -> Installed:
    """By pip, which finds nothing but `files`, a folder that `download` made of the same extra or of a larger one."""
    made = _environment(folder)
    wanted = [f"{wheel}[{extra}]" if extra else str(wheel)]
    if extra == DOWNLOADED:  # pip takes no package with an extra of its own (moto) from constraints
        wanted += [str(one) for one in files.glob("*.whl") if one.name != wheel.name]
    else:
        wanted += ["--constraint", str(files / CONSTRAINTS)]
    _checked([*PIP, "--python", made.python, "install", "--no-index", "--no-compile", *wanted])
    return made


def linked(built: Built, extra: str, folder: Path) -> Installed:
    made = _environment(folder)
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(made.site)
    for one in required(built, extra).values():
        files = [file.parts for file in one.files or () if file.parts[0] not in ("..", "__pycache__")]
        for name in {Path(*parts[: 2 if parts[0] == SHARED else 1]) for parts in files}:
            (made.site / name).parent.mkdir(exist_ok=True)
            (made.site / name).symlink_to(Path(str(one.locate_file(name))))
    return made


def required(built: Built, extra: str) -> dict[str, Distribution]:
    """What the wheel with the extra needs, of the environment of this process."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(_asked(built.metadata().get_all("Requires-Dist") or [], {extra}))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            found[name] = distribution(name)
            waiting += _asked(found[name].requires or [], requirement.extras)
    return found


def _asked(texts: Iterable[str], extras: set[str]) -> Iterable[Requirement]:
    for one in map(Requirement, texts):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield one


def _environment(folder: Path) -> Installed:
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    return Installed(folder, site)


def _files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [one.filename for one in archive.infolist() if not one.is_dir()]


def _checked(command: list[str | Path]) -> None:
    done = subprocess.run([str(one) for one in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
