"""`worm schema export` and `worm schema types`: from classes to a schema and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.company import SCHEMA, Command
from worm.formats import load_schema
from worm.formats.definition import Schema

MODELS = """
from __future__ import annotations

from pydantic import BaseModel

import worm


class Customer(worm.Document):
    name: str


class Order(worm.Document[int]):
    total: float = 0


class Plain(BaseModel):
    id: str
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module of classes, where the command runs."""
    (tmp_path / "crm_classes.py").write_text(MODELS)
    (tmp_path / "crm_package").mkdir()
    (tmp_path / "crm_package" / "models.py").write_text("import worm\n\n\nclass Thing(worm.Document):\n    pass\n")
    (tmp_path / "crm_broken.py").write_text("raise RuntimeError('no database')\n")
    (tmp_path / "crm_lacking.py").write_text("import crm_nowhere\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    for name in [one for one in sys.modules if one.startswith("crm_") or one == "models"]:
        del sys.modules[name]


def models(text: str) -> dict[str, str]:
    return {name: model.path for name, model in load_schema(json.loads(text)).models.items()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["crm_classes:Customer"], {"Customer": "@customers/(id:string)"}),
        (["crm_classes:Order,Customer"], {"Order": "@orders/(id:int)", "Customer": "@customers/(id:string)"}),
        (["crm_classes:Plain", "crm_classes:Order"], {"Plain": "@plains/(id:string)", "Order": "@orders/(id:int)"}),
        (["crm_classes"], {"Customer": "@customers/(id:string)", "Order": "@orders/(id:int)"}),
        (["crm_package.models"], {"Thing": "@things/(id:string)"}),
        (["crm_package/models.py:Thing"], {"Thing": "@things/(id:string)"}),
    ],
)
def test_export_writes_the_schema_of_classes(
    worm: Command, place: Path, arguments: list[str], expected: dict[str, str]
) -> None:
    ended = worm("schema", "export", *arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert models(ended.stdout) == expected


@pytest.mark.parametrize(
    ("argument", "code", "message"),
    [
        ("crm_nowhere", 3, "the module crm_nowhere does not exist"),
        ("crm_nowhere.models:Customer", 3, "the module crm_nowhere.models does not exist"),
        ("nowhere.py", 3, "the file nowhere.py does not exist"),
        ("crm_classes:Customr", 3, "crm_classes has no class 'Customr'; its documents: Customer, Order"),
        ("crm_classes:worm", 2, "crm_classes:worm is not a pydantic class"),
        ("crm_broken", 2, "crm_broken cannot be imported: RuntimeError: no database"),
        ("crm_lacking", 2, "crm_lacking cannot be imported: No module named 'crm_nowhere'"),
        ("json", 3, "json defines no subclass of worm.Document"),
    ],
)
def test_export_says_what_it_cannot_find(worm: Command, place: Path, argument: str, code: int, message: str) -> None:
    ended = worm("schema", "export", argument)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert message in ended.stderr


def test_types_and_export_lead_back_to_the_schema(worm: Command, place: Path, schema_file: Path) -> None:
    assert worm("schema", "types", str(schema_file), "-o", "crm_types.py").stderr == "wrote crm_types.py\n"
    assert worm("schema", "export", "crm_types", "--output", "again.json").exit_code == 0
    assert load_schema(Path("again.json")) == load_schema(SCHEMA)


def test_types_of_the_pushed_schema(worm: Command, schema_file: Path, url: str) -> None:
    assert worm("push", str(schema_file), "--url", url).exit_code == 0
    ended = worm("schema", "types", "--url", url)
    assert ended.exit_code == 0
    assert "class Customer(worm.Document):" in ended.stdout
    assert worm("schema", "types", "--url", f"{url}-else").exit_code == 3


def test_a_file_is_overwritten_only_by_force(worm: Command, place: Path, schema_file: Path) -> None:
    for command in (["types", str(schema_file)], ["export", "crm_classes"]):
        Path("out").write_text("mine")
        ended = worm("schema", *command, "-o", "out")
        assert (ended.exit_code, Path("out").read_text()) == (4, "mine")
        assert "already exists" in ended.stderr
        assert worm("schema", *command, "-o", "out", "--force").exit_code == 0
        assert Path("out").read_text() != "mine"


def test_the_json_schema_goes_to_stdout_or_to_a_file(worm: Command, place: Path) -> None:
    ended = worm("schema", "json-schema")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["$id"] == Schema.URL
    assert worm("schema", "json-schema", "-o", "schema.schema.json").stderr == "wrote schema.schema.json\n"
    assert Path("schema.schema.json").read_text() == ended.stdout
    assert worm("schema", "json-schema", "-o", "schema.schema.json").exit_code == 4


def test_a_schema_that_names_its_json_schema_is_pushed_and_compared(
    worm: Command, place: Path, schema_file: Path, url: str
) -> None:
    assert worm("push", str(schema_file), "--url", url).exit_code == 0
    keyed = place / "keyed.json"
    keyed.write_text(json.dumps({"$schema": "./schema.schema.json", **SCHEMA}))
    assert worm("push", str(keyed), "--url", url, "--dry-run").stdout == "nothing would change\n"
    assert worm("push", str(keyed), "--url", url).stdout.endswith("already has this schema\n")
