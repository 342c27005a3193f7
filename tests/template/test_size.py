"""A template that one can read: how long it is, how many questions it asks, and that its parts fit together."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.template.sam_document import FULL, NESTED, ROOT, TEMPLATE, TEMPLATES, document, stack
from worm.dev.template import read_template
from worm.errors import Invalid

KEY = "arn:aws:kms:eu-central-1:123456789012:key/1"
PARTS = {
    "roles.yaml": "RolesStack",
    "pages.yaml": "PagesStack",
    "api.yaml": "ApiStack",
    "observability.yaml": "ObservabilityStack",
    "template.yaml": "SparkStack",
}


def test_the_template_has_at_most_900_lines_and_each_part_at_most_600() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in TEMPLATES}
    assert lines[TEMPLATE] <= 900
    assert {path.name: lines[path] for path in TEMPLATES[1:] if lines[path] > 600} == {}


def test_the_template_has_ten_to_fourteen_parameters_all_with_defaults_and_descriptions() -> None:
    parameters = document()["Parameters"]
    assert 10 <= len(parameters) <= 14
    assert [name for name, one in parameters.items() if "Default" not in one or not one.get("Description")] == []


def test_the_console_groups_every_parameter() -> None:
    groups = document()["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert sorted(name for one in groups for name in one["Parameters"]) == sorted(document()["Parameters"])


def test_every_template_of_the_repository_is_nested_in_the_one_that_is_deployed() -> None:
    places = [one["Properties"]["Location"] for one in document()["Resources"].values() if "Location" in str(one)]
    found = [*(ROOT / "functions").glob("*.yaml"), *(ROOT / "spark_jobs").glob("*.yaml")]
    assert sorted(ROOT / place for place in places) == sorted(found) == sorted(TEMPLATES[1:])


@pytest.mark.parametrize("path", [*NESTED, ROOT / "spark_jobs" / "template.yaml"], ids=lambda path: path.name)
def test_a_nested_template_gets_a_value_for_each_parameter_that_has_no_default(path: Path) -> None:
    passed = document()["Resources"][PARTS[path.name]]["Properties"]["Parameters"]
    declared = document(path)["Parameters"]
    assert [name for name, one in declared.items() if "Default" not in one and name not in passed] == []
    assert [name for name in passed if name not in declared] == []


def test_no_two_resources_or_parameters_of_a_template_share_a_name() -> None:
    """CloudFormation refuses it; nothing else does."""
    shared = {path.name: set(document(path)["Parameters"]) & set(document(path)["Resources"]) for path in TEMPLATES}
    assert {name: names for name, names in shared.items() if names} == {}


COMBINATIONS = [
    {"ExistingBucketName": bucket, "KeyPrefix": prefix, "KmsKeyArn": key, "Events": events, "Pages": pages, **spark}
    for bucket, prefix, key, events, pages, spark in product(
        ("", "mine"),
        ("", "data/"),
        ("", KEY),
        ("eventbridge", "sqs"),
        ("on", "off"),
        (FULL, {**dict.fromkeys(FULL, ""), "ApiMode": "off"}),
    )
]


@pytest.mark.parametrize("parameters", COMBINATIONS, ids=lambda one: "-".join(filter(None, one.values())))
def test_any_combination_is_a_stack_whose_names_agree(parameters: dict[str, str]) -> None:
    made = stack(**parameters)
    template = read_template(TEMPLATE, parameters=parameters)
    bucket = parameters["ExistingBucketName"] or "worm-dev-documentbucket"
    has_pages, has_spark = parameters["Pages"] == "on", bool(parameters["SparkArtifactsBucket"])
    assert (
        {spec.environment["WORM_BUCKET"] for spec in template.functions} == {bucket} == {template.outputs["BucketName"]}
    )
    assert [one.name for one in template.buckets] == ([] if parameters["ExistingBucketName"] else [bucket])
    assert {spec.name for spec in template.functions} >= {"capture", "tables", "sweep", "purge"}
    assert ("apply" in {spec.name for spec in template.functions}) is has_pages is ("ApplyQueueUrl" in template.outputs)
    assert ("api" in {spec.name for spec in template.functions}) is has_spark is ("ApiUrl" in template.outputs)
    assert ("SparkApplication" in made) is has_spark is ("SparkApplicationId" in template.outputs)
    assert ("CaptureRule" in made) is (parameters["Events"] == "eventbridge")
    other = "worm-dev-documentbucket" if parameters["ExistingBucketName"] else "mine"
    assert [name for name, one in made.items() if f"{other}/" in str(one) or f"'{other}'" in str(one)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"KeyPrefix": "data"},
        {"KeyPrefix": "/data/"},
        {"KeyPrefix": ".data/"},
        {"KeyPrefix": "da*ta/"},
        {"ExistingBucketName": "Mine"},
        {"KmsKeyArn": "alias/mine"},
        {"Events": "sns"},
        {"Layout": "root,inline"},
        {"Layout": "anywhere"},
        {"Concurrency": "10,1,2"},
        {"Concurrency": "10,2000,2"},
        {"AlarmTopicArn": "on-call"},
        {"ApiMode": "on"},
        {"ApiMode": "readwrite,tokens"},
        {"ApiMode": "readonly,https://issuer.example"},
        {"ApiMode": "readonly,http://issuer.example,app"},
        {"ApiMode": "readonly,https://issuer.example,app,other"},
        {"ApiMode": "off,tokens"},
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_refused_before_anything_is_made(wrong: dict[str, str]) -> None:
    (name,) = wrong
    with pytest.raises(Invalid, match=rf"^Parameters\.{name}"):
        read_template(TEMPLATE, parameters=wrong)
