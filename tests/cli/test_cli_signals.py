"""Ctrl-C, SIGTERM and closed pipes, at any moment of the command's life."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.company import SCHEMA, Command
from worm.sdk.database import Worm

WORM = Path(sys.executable).with_name("worm")
COMMANDS = {
    "version": ("--version",),
    "query": ("table", "query", "Customer"),
    "verify": ("verify",),
    "repair": ("repair",),
    "import": ("import", "--prefix", "org/"),
    "put": ("put", "Customer", "--id", "new"),
}
TRIES = int(os.environ.get("WORM_SIGNALS", "10"))


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A runner that a shell started in the background ignores Ctrl-C, and so would the commands that it starts."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema and documents that nobody recorded: enough to keep a command busy."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / ".worm.schema.json").write_text(json.dumps(SCHEMA))
    for at in range(400):
        place = folder / "org" / "customers" / f"c{at}"
        place.mkdir(parents=True)
        (place / "data.json").write_text(json.dumps({"name": f"Customer {at}", "status": "active"}))
    return folder


@contextmanager
def started(arguments: Sequence[str], url: Path) -> Iterator[subprocess.Popen[str]]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    process = subprocess.Popen(
        [str(WORM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**variables, "WORM_URL": str(url)},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_its_own_handlers(process: subprocess.Popen[str]) -> None:
    """Until the command's first line has run. Before that there is only the interpreter, which loads itself."""
    state = Path("/proc") / str(process.pid) / "status"
    while process.poll() is None:
        caught = next((line for line in state.read_text().splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            return
        time.sleep(0.001)


def ended(process: subprocess.Popen[str], number: signal.Signals, delay: float) -> tuple[int, str]:
    """Exit code and stderr of a process that gets a signal so long after it began."""
    wait_for_its_own_handlers(process)
    time.sleep(delay)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    return process.returncode, told


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_any_moment_ends_a_command_without_a_traceback(
    name: str, number: signal.Signals, raw: Path
) -> None:
    """While modules were loaded, Ctrl-C showed the insides of the import machinery."""
    chance = random.Random(f"{name} {number}")
    codes = set()
    for _ in range(TRIES):
        delay = chance.choice([0.0, chance.uniform(0, 0.15), chance.uniform(0, 1.5)])
        with started(COMMANDS[name], raw) as process:
            code, told = ended(process, number, delay)
        lines = [line for line in told.splitlines() if line.startswith("worm: interrupted")]
        assert "Traceback" not in told, (delay, told)
        assert "Exception ignored" not in told, (delay, told)
        assert code == 128 + number or not lines, (delay, code, told)
        assert len(lines) <= 1
        codes.add(code)
    assert 128 + number in codes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_loaded_says_nothing(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-c", "from worm.cli.main import main; main()"]
    pipe, variables = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=variables, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        assert (process.communicate(timeout=50)[1], process.returncode) == ("", 128 + number)


FINALIZER = """
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)
def run():
    Last()
    time.sleep(600)
"""
BUSY_THREAD = """
def run():
    threading.Thread(target=time.sleep, args=(600,)).start()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
"""
DEAF_CLEAN_UP = """
def run():
    for _ in range(3):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)
        except BaseException:
            pass
"""


@pytest.mark.parametrize("work", [FINALIZER, BUSY_THREAD, DEAF_CLEAN_UP])
def test_an_interrupt_counts_wherever_it_strikes(work: str) -> None:
    """In a finalizer Python shows it and goes on; threads and clean-up that hang would keep the process."""
    program = f"import os, signal, threading, time, worm.cli.program\n{work}\nworm.cli.program.run = run\n"
    command = [sys.executable, "-c", f"{program}from worm.cli.main import main; main()"]
    found = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert (found.returncode, found.stderr) == (130, b"")


def wait_until_it_reads(process: subprocess.Popen[str]) -> None:
    """Until the command reads its standard input: more than a pipe holds is written only then."""
    assert process.stdin is not None
    process.stdin.write(" " * 500_000)
    process.stdin.flush()


@pytest.mark.slow
def test_an_interrupted_command_that_only_reads_says_so_in_one_line(raw: Path) -> None:
    """`put` waits for its document."""
    with started(COMMANDS["put"], raw) as process:
        wait_until_it_reads(process)
        code, told = ended(process, signal.SIGINT, 0)
    assert (code, told) == (130, "worm: interrupted\n")


def test_an_interrupted_command_that_has_written_says_what_stays(
    worm: Command, session: Worm, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who presses Ctrl-C must know that the first half is stored."""

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("worm.tables.table.Table.fold", stop)
    found = worm("put", "Customer", "--id", "new", "--url", url, stdin='{"name": "New"}')
    told = "worm: interrupted; changes that it has stored stay, and `worm repair` completes unfinished ones\n"
    assert (found.exit_code, found.stderr) == (130, told)
    assert json.loads(worm("get", "Customer", "new", "--url", url).stdout)["name"] == "New"


@pytest.mark.slow
def test_a_signal_that_the_caller_ignores_stays_ignored(raw: Path) -> None:
    """`nohup worm repair &` goes on after the terminal is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture sets it back
    with started(("put", "Nobody", "--id", "new"), raw) as process:
        wait_until_it_reads(process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate("{}", timeout=60)
    assert process.returncode == 3, told


@pytest.mark.parametrize(
    "arguments",
    [
        COMMANDS["query"],
        pytest.param(("--help",), marks=pytest.mark.slow),
        pytest.param(("table", "query", "--help"), marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_has_enough_gets_no_complaint(arguments: tuple[str, ...], raw: Path) -> None:
    """`| head -1`: also what is written while the process ends goes nowhere, quietly."""
    with started(arguments, raw) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
