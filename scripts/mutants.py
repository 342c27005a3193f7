"""Runs mutants (scripts/mutations.py) against the tests that cover them, and reports those that no test notices.

All of it is one pytest session, which collects the tests once. Each mutant is judged in a fork of it: the mutant
replaces the live function, then the tests that enter its block run, starting with those that enter the guarded code,
and the first failure ends it. Which test enters which block is recorded once and kept (build/mutants/). So a mutant
mostly costs the time of one or two tests. Tests in other processes (kill -9, the embedded AWS) read the code from disk
and cannot notice a mutant.

Verdicts are kept too, by the text of the module: a run continues where the last one ended. `docs/mutants.md` lists the
mutants that may survive, each with a reason; they run only with --listed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

from scripts.mutations import Counted, Mutant, Source, counted_blocks, modules, mutants_of  # noqa: E402 - needs the path set above
from tests.emulators import moto_server  # noqa: E402 - needs the path set above

ROOMS = [
    "store/",
    "collections/",
    "tables/",
    "spaces/",
    "log/",
    "upkeep/pushed_schema.py",
    "cli/relayout.py",
    "cli/infer.py",
]
TESTS = ["store", "collections", "tables", "spaces", "log", "pages", "sdk", "stateful", "workers", "cli", "template"]
KEPT = ROOT / "build" / "mutants"
LISTED = ROOT / "docs" / "mutants.md"
MARKS = "not spark and not tools and not localstack"
MEMORY_BYTES_MAX = 4 * 1024**3

Coverage = dict[str, dict[str, Any]]
"""Test file → its hash, that of the modules, and per test the seconds and the blocks that it enters."""


def listed() -> dict[str, str]:
    """Names of the mutants in docs/mutants.md, with the reason that each is given."""
    rows = re.findall(r"^- `([^`]+)`\n  (\S.*)$", LISTED.read_text(), re.MULTILINE) if LISTED.exists() else []
    return dict(rows)


def _hash(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _module_hash(module: str) -> str:
    return _hash(ROOT / "shared" / "worm" / module)


@dataclass
class Verdict:
    """The result for a mutant: killed (by a test), survived, or uncovered (no test enters its block)."""

    name: str
    verdict: str
    by: str
    tests: int
    seconds: float
    module_hash: str


class Runner:
    """The plugin: instead of running the tests that were collected, it runs mutants against them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.verdicts: list[Verdict] = []
        self.items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        KEPT.mkdir(parents=True, exist_ok=True)
        with _shared_moto(session.config):
            coverage = self._covered()
            chosen = self._chosen()
            self._say(f"{len(chosen)} mutants to judge, {len(self.items)} tests")
            self._judge(chosen, coverage)
        return True

    def _say(self, text: str) -> None:
        os.write(self.options.terminal, f"{text}\n".encode())

    def _fork(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            with Path(os.devnull).open("w") as nowhere:
                next(iter(self.items.values())).config.get_terminal_writer()._file = nowhere
                work()
            code = 0
        finally:
            os._exit(code)

    # -- which test enters which block

    def _covered(self) -> Coverage:
        path = KEPT / "coverage.json"
        known: Coverage = json.loads(path.read_text()) if path.exists() else {}
        watched = modules(ROOMS)
        code = _hash(*(ROOT / "shared" / "worm" / one for one in watched)) + ("-slow" if self.options.slow else "")
        files = sorted({nodeid.partition("::")[0] for nodeid in self.items})
        stale = [one for one in files if known.get(one, {}).get("hash") != _hash(ROOT / one) + code]
        if self.options.keep_coverage:
            stale = [one for one in stale if one not in known]
        if stale:
            self._say(f"recording which blocks the tests of {len(stale)} files run")
        hits: set[tuple[str, int]] = set()
        counted = [one for module in watched for one in counted_blocks(module, hits)] if stale else []
        waiting, running = list(stale), dict[int, str]()
        while waiting or running:
            while waiting and len(running) < self.options.jobs:
                file = waiting.pop()
                running[self._fork(partial(self._record, file, counted, hits, code))] = file
            pid, _ = os.wait()
            file = running.pop(pid, "")
            part = KEPT / f"part-{pid}.json"
            if file and part.exists():
                known[file] = json.loads(part.read_text())
                part.unlink()
                path.write_text(json.dumps(known))
        return {one: known[one] for one in files if one in known}

    def _record(self, file: str, counted: Counted, hits: set[tuple[str, int]], code: str) -> None:
        for function, counting in counted:
            function.__code__ = counting
        tests = {}
        mine = [item for item in self.items.values() if item.nodeid.partition("::")[0] == file]
        for item, following in zip(mine, [*mine[1:], None], strict=True):
            hits.clear()
            started, failed = time.monotonic(), item.session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed == failed:
                tests[item.nodeid] = [round(time.monotonic() - started, 3), sorted(f"{m}:{line}" for m, line in hits)]
        part = {"hash": _hash(ROOT / file) + code, "tests": tests}
        (KEPT / f"part-{os.getpid()}.json").write_text(json.dumps(part))

    # -- which mutants

    def _chosen(self) -> list[Mutant]:
        options, known = self.options, listed()
        found = [one for module in modules(options.modules or ROOMS) for one in mutants_of(Source.of(module))]
        hashes = {one.module: _module_hash(one.module) for one in found}
        done = {
            one.name
            for one in kept()
            if one.verdict != "survived" and one.module_hash == hashes.get(one.name.split(" ")[0])
        }
        if options.matching:
            return [one for one in found if options.matching in one.name]
        if options.survivors:
            alive = {one.name for one in kept() if one.verdict != "killed"}
            return [one for one in found if one.name in alive and (options.listed or one.name not in known)]
        waiting = [one for one in found if one.name not in done and (options.listed or one.name not in known)]
        random.Random(options.seed).shuffle(waiting)
        return waiting if options.all else waiting[: options.count]

    # -- running them

    def _judge(self, chosen: list[Mutant], coverage: Coverage) -> None:
        seconds = {test: one[0] for part in coverage.values() for test, one in part["tests"].items()}
        entering: dict[str, list[str]] = {}
        for part in coverage.values():
            for test, (_, blocks) in part["tests"].items():
                for block in blocks:
                    entering.setdefault(block, []).append(test)
        waiting, running = chosen[::-1], dict[int, tuple[Mutant, list[str], float, float]]()
        ends = time.monotonic() + 60 * self.options.minutes
        while waiting or running:
            while waiting and len(running) < self.options.jobs and time.monotonic() < ends:
                mutant = waiting.pop()
                tests = self._tests_for(mutant, entering, seconds)
                if not tests:
                    self._note(mutant, "uncovered", "", 0, 0.0)
                    continue
                limit = 20 + 6 * sum(seconds[test] for test in tests)
                pid = self._fork(partial(self._try, mutant, tests))
                running[pid] = mutant, tests, time.monotonic(), limit
            if not running:
                break
            self._reap(running)

    def _tests_for(self, mutant: Mutant, entering: dict[str, list[str]], seconds: dict[str, float]) -> list[str]:
        """Tests that enter the guarded code come first, then those of the same room, then the fast ones, up to a
        limited time."""
        inside = {test for line in mutant.edit.inside for test in entering.get(f"{mutant.module}:{line}", [])}
        around = entering.get(f"{mutant.module}:{mutant.block}", [])
        room = f"tests/{mutant.module.partition('/')[0]}/"

        def rank(test: str) -> tuple[bool, bool, float, str]:
            return test not in inside, not test.startswith(room), seconds[test], test

        chosen: list[str] = []
        spent = 0.0
        for test in sorted({*inside, *around} & set(self.items), key=rank):
            spent += seconds[test]
            if chosen and spent > self.options.patience:
                break
            chosen.append(test)
        return chosen

    def _reap(self, running: dict[int, tuple[Mutant, list[str], float, float]]) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            mutant, tests, started, _ = running.pop(pid)
            answer = KEPT / f"answer-{pid}"
            by = answer.read_text() if answer.exists() else f"ended with {status}"
            answer.unlink(missing_ok=True)
            verdict = "survived" if not by else "killed"
            self._note(mutant, verdict, by, len(tests), time.monotonic() - started)
        elif not pid:
            time.sleep(0.02)
        for late in [one for one, (_, _, started, limit) in running.items() if time.monotonic() - started > limit]:
            os.killpg(late, signal.SIGKILL)
            (KEPT / f"answer-{late}").write_text("it takes too long")

    def _try(self, mutant: Mutant, tests: list[str]) -> None:
        """In a fork: run the tests until one fails; the answer is a file with its name, empty if none does."""
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        source = Source.of(mutant.module)
        next(one for one in mutants_of(source) if one.name == mutant.name).edit.apply()
        by = ""
        try:
            source.install(mutant.function, mutant.line)
        except ValueError:
            by = "it cannot be installed"  # it lost the only use of an outer name
        items = [self.items[test] for test in tests] if not by else []
        for item, following in zip(items, [*items[1:], None], strict=True) if items else ():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                by = item.nodeid
                break
        (KEPT / f"answer-{os.getpid()}").write_text(by)

    def _note(self, mutant: Mutant, verdict: str, by: str, tests: int, seconds: float) -> None:
        one = Verdict(mutant.name, verdict, by, tests, round(seconds, 1), _module_hash(mutant.module))
        self.verdicts.append(one)
        with (KEPT / "verdicts.jsonl").open("a") as file:
            file.write(json.dumps(vars(one)) + "\n")
        place = f"{mutant.module}:{mutant.line}"
        self._say(f"{len(self.verdicts):5} {seconds:6.1f} s {verdict:9} {place} {mutant.name.partition(' ')[2]}")


def kept() -> list[Verdict]:
    """The newest verdict of each mutant that was ever run here."""
    path = KEPT / "verdicts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return list({one["name"]: Verdict(**one) for one in map(json.loads, lines)}.values())


@contextmanager
def _shared_moto(config: pytest.Config) -> Iterator[None]:
    """One moto for all forks: starting one takes longer than most tests."""
    conftest = next(
        one for one in config.pluginmanager.get_plugins() if getattr(one, "moto_server", None) is moto_server
    )
    with moto_server() as url:

        @contextmanager
        def running() -> Iterator[str]:
            yield url

        conftest.moto_server = running
        yield


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "modules", nargs="*", help="rooms or modules, such as store/ or store/cas.py; default: all rooms"
    )
    parser.add_argument("--matching", default="", help="only mutants with this text in their name, judged or not")
    parser.add_argument("--count", type=int, default=60, help="how many (default 60)")
    parser.add_argument("--all", action="store_true", help="all mutants that have not been judged yet")
    parser.add_argument("--survivors", action="store_true", help="only mutants that survived the last time")
    parser.add_argument("--listed", action="store_true", help="also mutants that docs/mutants.md lists")
    parser.add_argument("--minutes", type=float, default=10, help="start no mutant after this time (default 10)")
    parser.add_argument("--patience", type=float, default=30, help="seconds of tests for each mutant (default 30)")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders of tests")
    parser.add_argument("--slow", action="store_true", help="also run slow tests")
    parser.add_argument("--keep-coverage", action="store_true", help="reuse the recorded coverage")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    options.terminal = os.dup(1)
    os.nice(10)
    # No time for smaller examples, and no file that a later run of the tests would read.
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None, print_blob=False)
    settings.load_profile("mutants")
    runner = Runner(options)
    folders = [f"tests/{one}" for one in options.tests]
    code = pytest.main(
        [
            "-q",
            "-m",
            MARKS if options.slow else f"{MARKS} and not slow",
            "-p",
            "no:cacheprovider",
            "--no-summary",
            *folders,
        ],
        plugins=[runner],
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    counts = Counter(one.verdict for one in runner.verdicts)
    known = listed()
    unlisted = [one.name for one in runner.verdicts if one.verdict != "killed" and one.name not in known]
    healed = [one.name for one in runner.verdicts if one.verdict == "killed" and one.name in known]
    for title, names in (("No test misses", unlisted), ("Listed, but a test notices", healed)):
        if names:
            print(f"\n{title}:\n" + "\n".join(f"- `{name}`" for name in sorted(names)))
    print(f"\nmutants: {counts['killed']} killed, {counts['survived']} survived, {counts['uncovered']} uncovered")
    return 1 if unlisted or healed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
