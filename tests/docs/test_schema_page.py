"""docs/reference/schema.md has every member of schema.json as the JSON Schema describes it, and its examples load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docs.markdown import ROOT, blocks
from worm.formats import load_schema
from worm.formats.definition import Schema

PAGE = ROOT / "docs" / "reference" / "schema.md"
PUBLISHED: dict[str, Any] = json.loads(Schema.JSON_SCHEMA.read_text())
PARTS = {
    "The file": PUBLISHED,
    **{
        name: PUBLISHED["$defs"][name]
        for name in ("storage", "model", "field", "snapshots", "manifest", "lake", "index")
    },
}


def kind(about: dict[str, Any]) -> str:
    """The type of a member, in words."""
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        simple = {"layout", "optionalLayout", "fieldType", "duration"}
        return kind(PUBLISHED["$defs"][name]) if name in simple else f"[{name}](#{name})"
    if "anyOf" in about:
        return " or ".join(kind(one) for one in about["anyOf"] if one.get("type") != "null")
    if "enum" in about:
        return ", ".join(f"`{one}`" for one in about["enum"] if one is not None)
    types = about.get("type", "any JSON")
    word = types if isinstance(types, str) else " or ".join(one for one in types if one != "null")
    if "additionalProperties" in about:
        return f"{word} of {kind(about['additionalProperties'])}"
    least, most = about.get("minimum"), about.get("maximum")
    if least is None:
        return word
    return f"{word} from {least:,}" if most is None else f"{word} from {least:,} to {most:,}"


def rows(part: dict[str, Any]) -> list[str]:
    lines = ["| Member | Type | Default | Meaning | Example |", "|---|---|---|---|---|"]
    for name, about in part["properties"].items():
        said = {**PUBLISHED["$defs"][about["$ref"].rpartition("/")[2]], **about} if "$ref" in about else about
        is_required = name in part.get("required", ())
        usual = "required" if is_required else f"`{json.dumps(said['default'])}`" if "default" in said else "none"
        example = json.dumps(said["examples"][0], ensure_ascii=False)
        lines.append(f"| `{name}` | {kind(about)} | {usual} | {said['description']} | `{example}` |")
    return lines


@pytest.mark.parametrize("name", PARTS)
def test_the_page_has_the_table_of_every_part(name: str) -> None:
    section = PAGE.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == rows(PARTS[name])


def test_the_schemas_of_the_page_load_and_name_the_published_one() -> None:
    whole = [json.loads(one.text) for one in blocks(PAGE) if one.language == "json"]
    schemas = [one for one in whole if "models" in one]
    assert len(schemas) >= 1
    for one in schemas:
        assert one["$schema"] == Schema.URL
        load_schema(one)


def test_the_site_serves_the_schema_of_the_package() -> None:
    served = PAGE.with_name(Schema.URL.rpartition("/")[2])
    assert served.read_bytes() == Schema.JSON_SCHEMA.read_bytes()
