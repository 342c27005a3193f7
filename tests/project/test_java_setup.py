"""Java and Chromium are left alone where they serve, installed where they are missing, and asked for where they cannot
be installed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from scripts import browser, java
from scripts.debian import ProgramMissing

SEVENTEEN = 'openjdk version "17.0.15" 2025-04-15\n'
ELEVEN = 'openjdk version "11.0.2" 2019-01-15\n'
EIGHT = 'java version "1.8.0_202"\n'
INSTALL = "apt-get install --yes --quiet --no-install-recommends"


@dataclass
class Machine:
    """Answers to commands; `installable` are the packages that apt-get has, before or after `update`."""

    version: str | None = None
    installable: tuple[str, ...] = ()
    needs_update: bool = False
    programs: tuple[str, ...] = ("apt-get",)
    calls: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        text = " ".join(command)
        if text.endswith("-version") or "CDLL" in text:
            code, printed = (127, "not found") if self.version is None else (0, self.version)
            return subprocess.CompletedProcess(command, code, printed)
        self.calls.append(text)
        if text.endswith("update --quiet"):
            self.needs_update = False
        elif command[-1] in self.installable and not self.needs_update:
            self.version = SEVENTEEN
            return subprocess.CompletedProcess(command, 0, "")
        return subprocess.CompletedProcess(command, 100, f"E: Unable to locate package {command[-1]}")

    def ensure(self, *, is_root: bool = True, **environment: str) -> list[str]:
        said: list[str] = []

        def which(name: str) -> str | None:
            return name if name in self.programs else None

        java.ensure_java(said.append, environment=environment, run=self.run, which=which, is_root=is_root)
        return said


@pytest.mark.parametrize(
    ("printed", "expected"), [(SEVENTEEN, 17), (ELEVEN, 11), (EIGHT, 8), ('openjdk version "21" 2023', 21), ("", None)]
)
def test_the_version_is_read_from_what_java_prints(printed: str, expected: int | None) -> None:
    assert java.major("java", Machine(printed).run) == expected


def test_a_program_that_is_not_there_has_no_version() -> None:
    assert java.major("no-such-java-here") is None


def test_a_java_that_serves_is_left_alone() -> None:
    machine = Machine(SEVENTEEN, programs=())
    assert (machine.ensure(), machine.calls) == ([], [])


def test_missing_java_is_installed_and_that_is_said() -> None:
    machine = Machine(installable=java.PACKAGES)
    assert machine.ensure() == ["installing openjdk-17-jre-headless, which Spark needs"]
    assert machine.calls == [f"{INSTALL} openjdk-17-jre-headless"]


def test_an_old_java_does_not_count() -> None:
    machine = Machine(ELEVEN, installable=java.PACKAGES)
    machine.ensure()
    assert machine.calls == [f"{INSTALL} openjdk-17-jre-headless"]


def test_who_is_not_root_uses_sudo_and_is_never_asked_for_a_password() -> None:
    machine = Machine(installable=java.PACKAGES, programs=("apt-get", "sudo"))
    machine.ensure(is_root=False)
    assert machine.calls == [f"sudo -n {INSTALL} openjdk-17-jre-headless"]


def test_a_newer_debian_has_another_java_and_stale_lists_are_renewed() -> None:
    machine = Machine(installable=("default-jre-headless",), needs_update=True)
    machine.ensure()
    first = [f"{INSTALL} {package}" for package in java.PACKAGES]
    assert machine.calls == [*first, "apt-get update --quiet", *first]


@pytest.mark.parametrize(
    ("machine", "is_root", "reason"),
    [
        (Machine(programs=()), True, "there is no apt-get"),
        (Machine(), False, "this user is not root, and there is no sudo"),
    ],
)
def test_where_nothing_can_be_installed_the_message_says_why_and_what_to_do(
    machine: Machine, is_root: bool, reason: str
) -> None:
    with pytest.raises(ProgramMissing) as missing:
        machine.ensure(is_root=is_root)
    by_hand = "Install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME."
    assert str(missing.value) == f"Spark needs Java 17 or newer, but it cannot be installed: {reason}. {by_hand}"
    assert machine.calls == []


def test_a_failed_install_shows_what_apt_said() -> None:
    with pytest.raises(ProgramMissing, match=r"(?s)Unable to locate package .*apt-get could not install it"):
        Machine().ensure()


def test_java_home_is_respected() -> None:
    machine = Machine(SEVENTEEN)
    assert (machine.ensure(JAVA_HOME="/opt/java"), machine.calls) == ([], [])


@pytest.mark.parametrize(("version", "what"), [(ELEVEN, "Java 11"), (None, "no Java that starts")])
def test_a_java_home_that_does_not_serve_is_told_and_nothing_is_installed_beside_it(
    version: str | None, what: str
) -> None:
    machine = Machine(version, installable=java.PACKAGES)
    with pytest.raises(ProgramMissing) as missing:
        machine.ensure(JAVA_HOME="/opt/java")
    assert str(missing.value) == f"JAVA_HOME=/opt/java is {what}; Spark needs 17 or newer. Change or unset it."
    assert machine.calls == []


def test_chromium_is_installed_where_it_is_missing() -> None:
    machine, said = Machine(installable=("libatomic1",)), list[str]()
    browser.ensure_browser(said.append, run=machine.run, which=lambda name: name, is_root=True)
    browser.ensure_browser(said.append, run=machine.run, which=lambda name: name, is_root=True)
    assert said == ["installing chromium libatomic1, which the tests of the console need"]
    assert machine.calls == [f"{INSTALL} chromium libatomic1"]


def test_without_chromium_and_apt_the_message_says_what_to_do() -> None:
    with pytest.raises(ProgramMissing) as missing:
        browser.ensure_browser(print, run=Machine().run, which=lambda name: None, is_root=True)
    expected = "the tests of the console need Chromium, but it cannot be installed: there is no apt-get. "
    assert str(missing.value) == expected + "Install it (Debian: apt install chromium libatomic1)."
