"""`worm init`: three questions, then a program that runs, or a schema file.

Every question has an option. Without a terminal nobody is asked: what no option answers gets its default.
"""

from __future__ import annotations

import ast
import json
import keyword
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import opened_output
from worm.cli.options import DEFAULT_URL, Target, opened_stores
from worm.cli.output import count, echo
from worm.errors import Conflict, Invalid, NotFound, WormError, show
from worm.formats import JsonObject, ModelDef, ModelPath, Schema, load_schema
from worm.sdk import connect
from worm.store import split_url
from worm.upkeep import load_pushed_schema

FIRST_MODEL = "Customer"
EXAMPLES: tuple[JsonObject, ...] = (
    {"id": "acme", "name": "Acme Corp", "status": "active"},
    {"id": "globex", "name": "Globex", "status": "lead"},
    {"id": "initech", "name": "Initech", "status": "active"},
)
PROGRAM = '''\
"""A first program. `python app.py` lists the documents; `python app.py "Acme Corp"` adds one first."""

import sys

import worm


class {model}(worm.Document):
    name: str
    status: str = "lead"


def main() -> None:
    with worm.connect({place}, models=[{model}]) as db:
        db.push()
        documents = db.model({model})
        for name in sys.argv[1:]:
            documents.insert({model}(name=name))
        found = documents.find_all(sort="name")
        for one in found:
            print(one.id, one.name, one.status, sep="  ")
        print(f"{model}: {{len(found)}} in {{db.store.url}}")


if __name__ == "__main__":
    main()
'''


class InitFormat(StrEnum):
    """What to write."""

    python = "python"
    json = "json"


def init(
    context: typer.Context,
    target: Target,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help=f"Name of the first model (default: {FIRST_MODEL}).")
    ] = None,
    example: Annotated[
        bool | None,
        typer.Option("--example/--no-example", help="Store three example documents (default: yes in a directory)."),
    ] = None,
    format: Annotated[
        InitFormat, typer.Option("--format", help="Write a program, app.py, or a schema, schema.json.")
    ] = InitFormat.python,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Start a project: answer three questions, and get a program that runs, or a schema."""
    file = Path("app.py" if format is InitFormat.python else "schema.json")
    if file.is_dir() or (file.exists() and not force):
        raise Conflict(f"{file} exists already", hint="run it in another directory, or overwrite the file with --force")
    target = _place(target, is_given=_is_url_given(context))
    name = _answer(model, "Name of your first model?", FIRST_MODEL, _name_check(format))
    schema = load_schema(_schema_shape(name))
    is_directory = split_url(target.url).scheme != "s3"
    usual = "yes" if is_directory else "no"
    given = None if example is None else ("yes" if example else "no")
    wants_example = _is_yes(_answer(given, "Store three example documents there?", usual, _is_yes))
    if is_directory or wants_example:
        _refuse_other_schema(target, schema)
    if wants_example:
        _store_examples(target, name, schema)
    with opened_output(file) as opened:
        opened.write((_program(name, target) if format is InitFormat.python else _schema_text(name)).encode())
    echo(f"wrote {file}")
    echo("next:")
    for line in _next_steps(name, target, format, has_example=wants_example):
        echo(f"  {line}")


# Questions


def _answer(given: str | None, question: str, usual: str, check: Callable[[str], object]) -> str:
    """The option, or what somebody at a terminal answers, or the default. A wrong answer is asked for again."""
    is_asked = given is None and sys.stdin is not None and sys.stdin.isatty()
    while True:
        answer = (_typed(f"{question} [{usual}] ") or usual) if is_asked else (usual if given is None else given)
        try:
            check(answer)
        except WormError as error:
            if not is_asked:
                raise
            echo(f"  {error.for_shell()}", err=True)
        else:
            return answer


def _typed(question: str) -> str:
    echo(question, nl=False, err=True)
    line = sys.stdin.readline()
    if not line:
        echo("", err=True)
        raise Invalid("a question has no answer", hint="answer it, or use --url, --model and --example")
    return line.strip()


def _is_yes(answer: str) -> bool:
    known = {"y": True, "yes": True, "n": False, "no": False}.get(answer.lower())
    if known is None:
        raise Invalid(f"{show(answer)} is neither yes nor no")
    return known


def _is_url_given(context: typer.Context) -> bool:
    source = context.find_root().get_parameter_source("url")
    return context.params.get("url") is not None or (source is not None and source.name != "DEFAULT")


def _place(target: Target, *, is_given: bool) -> Target:
    def check(url: str) -> None:
        if url.lower().startswith("memory:"):
            raise Invalid(f"{show(url)} ends with the program", hint="name a directory, or s3://bucket/prefix")
        parts = split_url(url)
        if parts.scheme == "s3":
            parts.bucket_and_prefix()  # to open it takes credentials, which the program needs and this does not
        else:
            target.overridden(url=url).store()

    question = "Where do the documents go? A directory, or s3://bucket/prefix."
    return target.overridden(url=_answer(target.url if is_given else None, question, DEFAULT_URL, check))


def _name_check(format: InitFormat) -> Callable[[str], None]:
    def check(name: str) -> None:
        problem = ModelDef.name_problem(name)
        if problem is None and format is InitFormat.python and (keyword.iskeyword(name) or name in _taken_names()):
            problem = "it has another meaning in a Python program"
        if problem is not None:
            raise Invalid(f"{show(name)} cannot be the name of a model: {problem}", hint="such as Customer")

    return check


def _taken_names() -> set[str]:
    """The names that the program uses itself."""
    names = set[str]()
    for node in ast.walk(ast.parse(PROGRAM.format(model="_", place='"."'))):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.alias):
            names.add(node.name)
    return names


# What is written


def _schema_shape(model: str) -> JsonObject:
    """What the class of the program makes, too."""
    return {
        "version": "1.0",
        "models": {
            model: {
                "path": f"@{ModelPath.usual_collection(model, singleton=False)}/(id:string)",
                "fields": {
                    "name": {"type": "string", "required": True},
                    "status": {"type": "string", "default": "lead"},
                },
                "oplog": True,
                "manifest": {"enabled": True},
            }
        },
    }


def _schema_text(model: str) -> str:
    return json.dumps({"$schema": Schema.URL, **_schema_shape(model)}, indent=2) + "\n"


def _program(model: str, target: Target) -> str:
    place = json.dumps(target.url, ensure_ascii=False)
    if target.endpoint_url is not None:
        place += f", endpoint_url={json.dumps(target.endpoint_url, ensure_ascii=False)}"
    return PROGRAM.format(model=model, place=place)


def _refuse_other_schema(target: Target, schema: Schema) -> None:
    """A push would replace the schema that is there."""
    with suppress(NotFound):
        pushed = load_pushed_schema(target.store())
        if pushed != schema:
            hint = "choose another --url, or write classes for its schema with `worm schema types -o models.py`"
            raise Conflict(f"{target.url} has another schema already: {', '.join(pushed.models)}", hint=hint)


def _store_examples(target: Target, model: str, schema: Schema) -> None:
    with connect(
        target.url, schema=schema, endpoint_url=target.endpoint_url, actor=target.actor, maintenance="inline"
    ) as session:
        opened_stores.append(session.store)
        session.push()
        documents, stored = session.model(model), 0
        for one in EXAMPLES:
            with suppress(Conflict):  # it is there since an earlier run
                documents.insert(one)
                stored += 1
    echo(f"stored {count(stored, 'example document')} in {target.url}")


def _next_steps(model: str, target: Target, format: InitFormat, *, has_example: bool) -> Iterator[str]:
    """Three commands, as a shell takes them."""
    options = {"--url": target.url if target.url != DEFAULT_URL else None, "--endpoint-url": target.endpoint_url}
    where = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value is not None)
    if format is InitFormat.python:
        yield "python app.py" if has_example else 'python app.py "Acme Corp"'
    else:
        yield f"worm push schema.json{where}"
    if format is InitFormat.json and not has_example:
        yield f"""echo '{{"name": "Acme Corp"}}' | worm put {model} --id acme{where}"""
    yield f"worm table query {model}{where}"
    if has_example:
        yield f"worm history {model} acme{where}"
    elif format is InitFormat.python:
        yield f"worm history {model}{where}"
