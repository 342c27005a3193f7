"""CloudFormation documents: tags, intrinsics, and errors that say where."""

from __future__ import annotations

import pytest

from worm.dev.cfn import Resolver, load
from worm.errors import Invalid

DOCUMENT = """
Parameters:
  Name: {Type: String, Default: docs}
  Zones: {Type: CommaDelimitedList, Default: "a, b"}
  Level: {Type: String, Default: INFO, AllowedValues: [INFO, DEBUG]}
Mappings:
  Sizes:
    small: {memory: 128}
Conditions:
  IsDocs: !Equals [!Ref Name, docs]
  IsOther: !Not [!Condition IsDocs]
  Either: !Or [!Condition IsDocs, !Condition IsOther]
  Both: !And [!Condition IsDocs, !Condition IsOther]
"""


class _Resources:
    def ref(self, logical_id: str) -> str:
        return {"Bucket": "my-bucket"}[logical_id]

    def attribute(self, logical_id: str, name: str) -> str:
        return {("Bucket", "Arn"): "arn:aws:s3:::my-bucket"}[logical_id, name]


def resolver(**parameters: str) -> Resolver:
    made = Resolver(load(DOCUMENT), parameters, "eu-west-1", "stack")
    made.resources = _Resources()
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!Ref Name", "docs"),
        ("!Ref Zones", ["a", "b"]),
        ("!Ref Bucket", "my-bucket"),
        ("!Ref AWS::AccountId", "000000000000"),
        ("!GetAtt Bucket.Arn", "arn:aws:s3:::my-bucket"),
        ("!Sub '${Bucket.Arn}/${Name}/${!Literal}@${AWS::Region}'", "arn:aws:s3:::my-bucket/docs/${Literal}@eu-west-1"),
        ("!Sub ['${A}-${Name}', {A: !Ref Bucket}]", "my-bucket-docs"),
        ("!Join ['-', [a, !Ref Name]]", "a-docs"),
        ("!Select [1, !Split ['/', x/y/z]]", "y"),
        ("!FindInMap [Sizes, small, memory]", 128),
        ("!If [IsDocs, yes-docs, no-docs]", "yes-docs"),
        ("!If [IsOther, yes-docs, no-docs]", "no-docs"),
        ("!If [Either, 1, 2]", 1),
        ("!If [Both, 1, 2]", 2),
        ("{kept: 1, gone: !Ref AWS::NoValue}", {"kept": 1}),
        ("[1, !If [Both, 2, !Ref AWS::NoValue], 3]", [1, 3]),
        ("{Fn::Join: ['', [a, {Ref: Name}]]}", "adocs"),
    ],
)
def test_intrinsics_become_values(text: str, expected: object) -> None:
    node = load(f"value: {text}")["value"]
    assert resolver().resolve(node, "value") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{Deep: [!Cidr [a, b]]}", "Resources.X.Deep[0]: intrinsic Fn::Cidr is not supported by the embedded AWS"),
        ("!Ref Nothing", "Resources.X: the embedded AWS cannot resolve Ref Nothing (Nothing)"),
        ("{A: !GetAtt Bucket.Color}", "Resources.X.A: the embedded AWS cannot resolve Fn::GetAtt Bucket.Color"),
        ("!If [Missing, 1, 2]", "Resources.X: condition Missing is not defined"),
        ("!FindInMap [Sizes, large, memory]", "Resources.X: Fn::FindInMap [Sizes, large, memory] finds nothing"),
    ],
)
def test_what_cannot_be_resolved_is_named_with_its_path(text: str, message: str) -> None:
    node = load(f"value: {text}")["value"]
    with pytest.raises(Invalid) as caught:
        resolver().resolve(node, "Resources.X")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Level": "TRACE"}, "Parameters.Level: 'TRACE' is not one of ['INFO', 'DEBUG']"),
        ({"Typo": "x"}, "Parameters: the template has no parameter Typo"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        resolver(**parameters)
    assert str(caught.value) == message


def test_a_parameter_without_default_needs_a_value() -> None:
    with pytest.raises(Invalid, match=r"Parameters\.A: has no default and no value was given"):
        Resolver(load("Parameters: {A: {Type: String}}"), {}, "us-east-1", "stack")


def test_text_that_is_no_template_is_refused() -> None:
    with pytest.raises(Invalid, match="not YAML"):
        load("a: [")
    with pytest.raises(Invalid, match="a template must be a mapping"):
        load("- a")
