"""Creates the virtual environments of this project; `scripts/setup` calls it with a suitable Python.

An environment is left alone while its stamp, a hash of its inputs, is up to date; otherwise the pinned packages are
installed into it again. With a lock, two scripts can start at once on a fresh clone. Only the standard library is used:
nothing is installed yet when this runs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts import browser, java
from scripts.debian import ProgramMissing

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".setup-stamp"
RUN = ".[dev,spark]"
DEVELOP = ".[arrow,dev,spark,sql]"


class SetupFailed(Exception):
    """A step failed; the message says what to do."""


@dataclass(frozen=True)
class Environment:
    """One virtual environment: its folder, what is installed, and the files that determine it."""

    folder: str
    label: str
    constraints: str
    requirements: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / self.folder

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def stamp(self) -> str:
        digest = hashlib.sha256(repr((self.requirements, str(ROOT), sys.version_info[:2])).encode())
        for name in (self.constraints, *self.sources):
            digest.update((ROOT / name).read_bytes())
        return digest.hexdigest()

    def stamps(self) -> list[str]:
        path = self.path / STAMP
        return path.read_text().split() if path.exists() else []


def application() -> Environment:
    wanted = ("--editable", RUN)
    return Environment(".venv", "the packages to run", "constraints.txt", wanted, ("pyproject.toml",))


def development() -> Environment:
    """Contains `application`."""
    wanted = ("--editable", DEVELOP, *develop_group())
    return Environment(".venv", "the packages to run and test", "constraints.txt", wanted, ("pyproject.toml",))


def develop_group() -> list[str]:
    """The packages for development, besides the extras. `pip install --group` needs a newer pip than a venv has."""
    groups: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return groups["develop"]


def tools() -> Environment:
    """Template tools pin other versions of shared packages (urllib3, click), so they have their own environment."""
    names = ("aws-sam-cli", "checkov", "cfn-lint", "wheel")
    return Environment(".venv-tools", "the template tools (sam, checkov)", "constraints-tools.txt", names, ())


def clients() -> Environment:
    """Third-party clients of S3 and HTTP. They pin other versions of botocore than ours."""
    names = ("awscli", "datasette", "minio", "s3cmd", "s3fs", "schemathesis")
    return Environment(".venv-clients", "clients (aws, s3cmd, schemathesis, …)", "constraints-clients.txt", names, ())


def spark40() -> Environment:
    """The Spark version of EMR; .venv has the newest one."""
    name, wanted = ".venv-spark40", ("--editable", ".[spark]")
    return Environment(name, "Spark as EMR has it", "constraints-spark40.txt", wanted, ("pyproject.toml",))


def say(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One setup at a time in this folder."""
    handle = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup in this folder")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: Sequence[str | Path], hint: str) -> None:
    """Runs a step quietly; on failure shows the end of what it printed."""
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise SetupFailed(f"{tail}\n'{' '.join(parts)}' ended with {done.returncode}. {hint}")


def require(*programs: str) -> None:
    """Programs that are not Python packages: `sam build` calls make, and tests get the committed files from git."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise SetupFailed(f"{' and '.join(missing)} not found. Debian: apt install {' '.join(missing)}")


def works(environment: Environment) -> bool:
    """Whether its Python starts and has pip (it does not after the base Python or the folder was moved)."""
    if not environment.python.exists():
        return False
    command = [str(environment.python), "-c", "import pip"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def ensure(environment: Environment, implied: Sequence[Environment] = ()) -> None:
    """Brings the environment up to date; `implied` are smaller ones in the same folder that this one contains."""
    wanted = environment.stamp()
    if wanted in environment.stamps() and works(environment):
        return
    started = time.monotonic()
    if not works(environment):
        if environment.path.exists():
            say(f"{environment.folder} does not start; rebuilding it")
            shutil.rmtree(environment.path)
        say(f"creating {environment.folder} with Python {sys.version.split()[0]}")
        venv.create(environment.path, with_pip=True)
    say(f"installing {environment.label} into {environment.folder} (a minute or two the first time)")
    (environment.path / STAMP).unlink(missing_ok=True)
    pip = (str(environment.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    hint = "Check that the package index is reachable. pip's own settings (pip config, PIP_*) apply."
    run([*pip, "--constraint", environment.constraints, *environment.requirements], hint)
    stamps = [wanted, *(other.stamp() for other in implied)]
    (environment.path / STAMP).write_text("\n".join(stamps) + "\n")
    say(f"{environment.folder} is ready ({time.monotonic() - started:.0f} s)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/setup", description="Sets up what the scripts need; safe to repeat.")
    parser.add_argument("--dev", action="store_true", help="also the packages for tests and lint")
    parser.add_argument("--java", action="store_true", help="also Java, if it is missing (apt-get)")
    parser.add_argument("--spark40", action="store_true", help="also .venv-spark40: the Spark version of EMR")
    parser.add_argument("--tools", action="store_true", help="also .venv-tools: sam, checkov, cfn-lint")
    parser.add_argument(
        "--clients", action="store_true", help="also .venv-clients: clients for tests/outside and tests/api"
    )
    parser.add_argument("--browser", action="store_true", help="also Chromium, if it is missing (apt-get)")
    parser.add_argument("--localstack", action="store_true", help="also .venv-localstack: the second AWS emulator")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    try:
        with locked():
            if options.dev:
                ensure(development(), implied=[application()])
            else:
                ensure(application())
            if options.spark40:
                ensure(spark40())
            if options.tools:
                require("make", "git")
                ensure(tools())
            if options.clients:
                ensure(clients())
            if options.java:
                java.ensure_java(say)
            if options.browser:
                browser.ensure_browser(say)
        if options.localstack:
            return subprocess.run([str(ROOT / "scripts" / "localstack-setup")], check=False).returncode
    except (SetupFailed, ProgramMissing) as failure:
        say(f"failed.\n{failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
