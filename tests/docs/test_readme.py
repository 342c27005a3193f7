"""The README is run: what it tells a new user to do works, in its order, with the output it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, Block, blocks

README = ROOT / "README.md"
INSTALL = "pip install 's3worm[cli]'"
"""tests/package runs it, with the wheel."""


def _blocks(language: str) -> list[str]:
    return [block.text for block in blocks(README) if block.language == language]


def _commands() -> list[str]:
    return [line for text in _blocks("sh") for line in text.splitlines()]


def _environment() -> dict[str, str]:
    """A shell with the project's commands and nothing of the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _run(command: list[str], folder: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def _look_at_it(command: str, folder: Path) -> None:
    """The command shows the console to a browser, which gets the page; then it is ended."""
    shown, browser = folder / "shown", folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.part && mv {shown}.part {shown}\n')
    browser.chmod(0o755)
    environment = _environment() | {"BROWSER": f"{browser} %s"}
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[1].startswith("console: http://127.0.0.1:"), process.communicate()
        for _ in range(600):
            if shown.exists():
                break
            time.sleep(0.1)
        link = shown.read_text().strip()
        assert lines[1] == f"console: {link}\n"
        with urllib.request.urlopen(link.partition("#")[0], timeout=10) as page:
            assert b"<html" in page.read()
        process.terminate()  # a runner in the background ignores Ctrl-C, and so do the commands that it starts
        assert (process.wait(timeout=60), process.communicate()) == (0, ("", "stopping\n"))
    finally:
        process.kill()
        process.communicate()


def test_every_fenced_command_is_one_that_a_test_runs() -> None:
    others = [command for command in _commands() if not command.startswith("worm ")]
    assert others == [INSTALL, "./scripts/run", "./scripts/test"]
    assert {block.language for block in blocks(README)} == {"sh", "python", "text"}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorials/five-minutes.md"])
def test_the_first_program_can_be_run_again_and_prints_the_same(page: str, tmp_path: Path) -> None:
    """The second run ended with the traceback of a Conflict."""
    program = next(block.text for block in blocks(ROOT / page) if block.language == "python")
    output = next(block.text for block in blocks(ROOT / page) if block.language == "text")
    for _ in range(2):
        ran = _run([sys.executable, "-c", program], tmp_path)
        assert (ran.stderr, ran.stdout, ran.returncode) == ("", output, 0)


@pytest.mark.slow
def test_the_examples_run_in_order_with_the_output_shown(tmp_path: Path) -> None:
    (program,), (output,) = _blocks("python"), _blocks("text")
    ran = _run([sys.executable, "-c", program], tmp_path)
    assert (ran.stdout, ran.stderr, ran.returncode) == (output, "", 0)
    shown = {}
    for command in _commands():
        if command.startswith("worm serve"):
            _look_at_it(command, tmp_path)
        elif command.startswith("worm "):
            ended = _run(["bash", "-c", command], tmp_path)
            assert (ended.stderr, ended.returncode) == ("", 0), command
            shown[command.split()[1:3][-1]] = ended.stdout
    assert "active" in shown["query"]
    assert shown["verify"].endswith("no differences\n")


def test_the_python_example_is_an_import_and_eleven_lines_with_its_schema() -> None:
    (program,) = _blocks("python")
    first, *lines = [line for line in program.splitlines() if line]
    assert first == "import worm"
    assert any("(worm.Document):" in line for line in lines)
    assert len(lines) <= 11


def test_the_first_success_fits_on_one_screen() -> None:
    """What it is, one picture, how to install it, a program and what it prints."""
    lines = README.read_text().splitlines()
    assert len([line for line in lines if line.startswith("![")]) == 1
    assert lines.index(INSTALL) < 12
    assert lines.index("```text") < 36
    assert len(lines) < 70


def test_the_home_page_of_the_site_has_the_same_program() -> None:
    shown = [block for block in blocks(ROOT / "docs" / "index.md") if block.language in ("python", "text")]
    assert shown == [block for block in blocks(README) if block.language in ("python", "text")]


def test_it_leads_to_the_four_parts_of_the_documentation() -> None:
    parts = re.findall(r"^- \*\*\[([\w-]+)\]\(", README.read_text(), flags=re.MULTILINE)
    assert parts == ["Tutorials", "How-to", "Reference", "Explanation"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_scripts_run_is_the_demo_and_the_demo_ends_well() -> None:
    """scripts/run only sets up and hands over, so the demo is run as it does it, with fewer documents."""
    script = (ROOT / "scripts" / "run").read_text()
    assert script.rstrip().endswith('exec .venv/bin/python -m worm.dev.demo "$@"')
    ended = _run([sys.executable, "-m", "worm.dev.demo", "--documents", "25"], ROOT, timeout=570)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "25 uploads, 5 overwrites, 1 deletes sent by plain boto3\n" in ended.stdout
    sections = re.findall(r"^\$ (worm (?:table |trash )?\w+)", ended.stdout, flags=re.MULTILINE)
    trash = ["worm trash list", "worm trash restore", "worm history"]
    assert sections == ["worm push", "worm table query", "worm history", "worm table list", *trash, "worm verify"]
    assert re.search(r"^ +3 +restore ", ended.stdout, flags=re.MULTILINE)
    assert "was deleted again and has expired: purge removed it from the trash\n" in ended.stdout
    assert re.search(r"^capture +\d+ +31 +0 +0 +\d+ +\d+\.\d\d$", ended.stdout, flags=re.MULTILINE)
    assert re.search(r"^31 changes; \d+\.\d\d S3 requests by the workers per change$", ended.stdout, flags=re.MULTILINE)
    assert "no differences\n" in ended.stdout
    jobs = re.findall(r"^\$ spark-submit spark_jobs/launch\.py (\w+) --url s3://", ended.stdout, flags=re.MULTILINE)
    assert jobs == ["rebuild", "verify"]
    assert re.search(r"the same bytes as the workers in all \d+ table files\n", ended.stdout)


def test_scripts_test_is_what_ci_runs() -> None:
    script = ROOT / "scripts" / "test"
    assert os.access(script, os.X_OK)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec ./scripts/test")
    assert "-m pytest" in script.read_text()


def test_blocks_are_found_by_their_language(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n```sh\nls\n```\nb\n```\nx\ny\n```\n")
    assert blocks(page) == [Block("sh", "ls\n"), Block("", "x\ny\n")]
