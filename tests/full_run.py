"""A pytest plugin for the full run of `scripts/test`.

A test that failed beside others runs again alone, once, at the end. If it passes then, it is *unsteady*: the machine or
another test decided, not the code. The run names it and shows its first output, and fails only if there are more than
`UNSTEADY_MAX`. A test that fails again fails the run. If more than `AGAIN_MAX` tests fail, none runs again.

Everything else fails the run as before: a file that cannot be imported, tests that never ran, an error of pytest.

A crashed worker fails only the test that it was running; without `Scheduling`, the run would hang.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

UNSTEADY_MAX = 3
AGAIN_MAX = 20


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """After xdist has ended its workers, and before pytest prints the summary."""
    yield
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.TESTS_FAILED:  # a worker has no reporter
        return
    failed = _failed_tests(reporter, session.testscollected)
    if not failed:
        return
    reporter.write_line("")
    if len(failed) > AGAIN_MAX:
        reporter.write_line(f"{len(failed)} tests failed: too many to run them again")
        return
    unsteady = [name for name in failed if _passes_alone(name, failed[name], reporter, session.config.rootpath)]
    if len(unsteady) > UNSTEADY_MAX:
        reporter.write_line(f"{len(unsteady)} tests are unsteady, and only {UNSTEADY_MAX} may be")
        return
    _count_as_unsteady(reporter, [report for name in unsteady for report in failed[name]])
    if len(unsteady) == len(failed):
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    unsteady: list[pytest.TestReport] = terminalreporter.stats.get("unsteady", [])
    if unsteady:
        terminalreporter.write_sep("=", "unsteady", yellow=True, bold=True)
    for report in unsteady:
        terminalreporter.write_sep("_", _name(report), yellow=True, bold=True)
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line(text)


def _failed_tests(reporter: pytest.TerminalReporter, collected: int) -> dict[str, list[pytest.TestReport]]:
    """The failures of each test. Empty if something else went wrong too: then no test can save the run."""
    failures = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    reports = [one for kind in reporter.stats.values() for one in kind if isinstance(one, pytest.TestReport)]
    all_ran = len({report.nodeid for report in reports}) == collected
    if not all_ran or not all(isinstance(failure, pytest.TestReport) for failure in failures):
        return {}
    failed: dict[str, list[pytest.TestReport]] = {}
    for failure in failures:
        failed.setdefault(_name(failure), []).append(failure)
    return failed


def _name(report: pytest.TestReport) -> str:
    """As pytest takes it: xdist appends the group of a test (`@browser`)."""
    name, _, group = report.nodeid.rpartition("@")
    return name if name and "]" not in group else report.nodeid


def _passes_alone(name: str, failures: list[pytest.TestReport], reporter: pytest.TerminalReporter, root: Path) -> bool:
    """In a process of its own. If it fails again, both outputs are shown."""
    reporter.write(f"again, alone: {name} ", flush=True)
    command = [sys.executable, "-m", "pytest", "--numprocesses=0", "--quiet", "--color=no", name]
    with tempfile.TemporaryFile() as output:  # a pipe would stay open in processes that the test leaves behind
        code = subprocess.run(command, cwd=root, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        output.seek(0)
        text = output.read().decode(errors="replace")
    passes = code == 0 and re.search("^1 passed", text, re.MULTILINE) is not None  # to be skipped is not to pass
    reporter.write_line("passed" if passes else "failed")
    if not passes:
        failures[-1].sections.append(("again, alone", text))
    return passes


def _count_as_unsteady(reporter: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    """Instead of as failures, in the summary and in its last line."""
    for kind in ("failed", "error"):
        others = [one for one in reporter.stats.pop(kind, []) if one not in reports]
        if others:
            reporter.stats[kind] = others
    if reports:
        reporter.stats["unsteady"] = reports


class Scheduling(LoadGroupScheduling):  # type: ignore[misc] # xdist ships no types
    """xdist's, which in 3.8 does not survive a crash (pytest-dev/pytest-xdist#1323, #1327, #1371)."""

    def remove_node(self, node: WorkerController) -> str | None:
        """The test that crashed, which is not tried again. xdist would also queue units that are complete, and then
        wait for them for ever."""
        units: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        pending = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if not pending:
            return None
        unit, crashed = pending[0]
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def schedule(self) -> None:
        """A worker begins when it has two tests; xdist would give only one to a worker that replaces another."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
