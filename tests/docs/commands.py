"""Commands that are not run, because they need an account of AWS: program, command and options must exist."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib import import_module
from typing import Any

import typer.main
from botocore import xform_name
from botocore.model import ServiceModel
from botocore.session import get_session

from tests.docs.markdown import ROOT, Block
from worm.cli.program import app
from worm.dev.cfn import load

OTHER_PROGRAMS = ("curl", "export", "python", "sed")
NOT_IN_THE_API = ("aws logs tail", "aws s3 cp", "aws s3 mb", "aws s3 rm", "aws s3 sync")
EVERYWHERE = {"cli-binary-format", "endpoint-url", "output", "query", "region"}
ASSIGNED = re.compile(r"^\w+=\$\((.*)\)$")


def lines_of(block: Block) -> list[str]:
    """Each command as one line, without its comment and without the variable that takes its output."""
    text = block.text.replace("\\\n", " ")
    return [ASSIGNED.sub(r"\1", line) for line in text.splitlines() if line.strip()]


def check_command(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    checks = {"worm": _check_worm, "aws": _check_aws, "sam": _check_sam, "spark-submit": _check_job}
    assert program in {*checks, *OTHER_PROGRAMS}, line
    if program in checks:
        checks[program](words, line)


def _check_worm(words: list[str], line: str) -> None:
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", {}), line
    with command.make_context(line, words):
        pass


@cache
def _service(name: str) -> ServiceModel:
    return get_session().get_service_model(name if name != "s3api" else "s3")


def _check_aws(words: list[str], line: str) -> None:
    if line.startswith(NOT_IN_THE_API):
        return
    service, operation, *rest = words
    found = {xform_name(one, "-"): one for one in _service(service).operation_names}
    assert operation in found, line
    shape = _service(service).operation_model(found[operation]).input_shape
    members = {xform_name(one, "-") for one in shape.members} if shape else set()
    options = {one.removeprefix("--").removeprefix("no-") for one in rest if one.startswith("--")}
    assert options - members - EVERYWHERE == set(), line


def _check_sam(words: list[str], line: str) -> None:
    parameters = load((ROOT / "template.yaml").read_text())["Parameters"]
    given = [one.partition("=")[0] for one in words if re.match(r"[A-Z]\w+=", one)]
    assert words[0] == "deploy", line
    assert given, line
    assert [one for one in given if one not in parameters] == [], line


def _check_job(words: list[str], line: str) -> None:
    job, *arguments = words[words.index("--py-files") + 2 :]
    assert (ROOT / job).is_file(), line
    import_module(job.removesuffix(".py").replace("/", "."))._parser().parse_args(arguments)
