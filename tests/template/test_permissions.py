"""Who may do what: least privilege of the roles, and the policies of bucket and queues."""

from __future__ import annotations

import json

import pytest
from moto.iam.policy_validation import IAMPolicyDocumentValidator

from tests.template.sam_document import (
    BUCKET,
    Function,
    Json,
    as_list,
    functions,
    queue_id,
    resources,
    role_statements,
)

EVERY = pytest.mark.parametrize("function", functions(), ids=lambda function: function.folder)


def _policies() -> dict[str, list[str]]:
    """Policies of queues, each with the queues that it is for."""
    found = resources("AWS::SQS::QueuePolicy").items()
    return {name: [queue_id(url) for url in one["Queues"]] for name, one in found}


def _rule(name: str) -> str:
    return f"arn:aws:events:us-east-1:000000000000:rule/worm-dev-{name}"


def test_each_function_has_a_role_of_its_own() -> None:
    roles = [one.role() for one in functions()]
    assert roles == [one.folder.title() + "Role" for one in functions()]


@EVERY
def test_a_role_writes_only_to_the_log_groups_of_the_functions_of_its_stack(function: Function) -> None:
    (logging,) = [one for one in function.statements() if "logs:PutLogEvents" in as_list(one["Action"])]
    groups = [
        one["LogGroupName"] for one in resources("AWS::Logs::LogGroup").values() if "lambda" in one["LogGroupName"]
    ]
    here = "arn:aws:logs:us-east-1:000000000000:log-group:"
    assert sorted(logging["Resource"]) == sorted(f"{here}{name}:*" for name in groups)
    assert function.properties["LoggingConfig"]["LogGroup"] in groups


@pytest.mark.parametrize(("policy", "queues"), sorted(_policies().items()))
def test_a_queue_is_encrypted_refuses_plain_http_and_takes_messages_of_rules_of_its_template_only(
    policy: str, queues: list[str]
) -> None:
    statements = {one["Sid"]: one for one in resources("AWS::SQS::QueuePolicy")[policy]["PolicyDocument"]["Statement"]}
    rules = {"QueuePolicy": ["CaptureRule", "TablesRule"], "PagesQueuePolicy": ["PagesStack-ApplyRule"]}
    allow = {
        "Sid": "AllowRules",
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": "*",
        "Condition": {
            "ArnEquals": {"aws:SourceArn": [_rule(name) for name in rules.get(policy, ["SparkStack-SparkRule"])]},
            "StringEquals": {"aws:SourceAccount": "000000000000"},
        },
    }
    deny = {
        "Sid": "DenyWithoutTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": "*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    assert statements == {"AllowRules": allow, "DenyWithoutTls": deny}
    assert {name: resources("AWS::SQS::Queue")[name]["SqsManagedSseEnabled"] for name in queues} == dict.fromkeys(
        queues, True
    )


def test_every_queue_has_one_policy_and_a_template_has_one_for_all_its_queues() -> None:
    queues = [queue for one in _policies().values() for queue in one]
    assert sorted(queues) == sorted(resources("AWS::SQS::Queue"))
    assert {name: len(queues) for name, queues in _policies().items()} == {
        "QueuePolicy": 6,
        "PagesQueuePolicy": 3,
        "SparkQueuePolicy": 1,
    }


@pytest.mark.parametrize("name", [{}, {"ExistingBucketName": "mine"}])
def test_the_bucket_may_send_to_the_queues_itself_and_no_rule_does_it_twice(name: dict[str, str]) -> None:
    policy = resources("AWS::SQS::QueuePolicy", Events="sqs", **name)["QueuePolicy"]["PolicyDocument"]
    statements = {one["Sid"]: one for one in policy["Statement"]}
    assert statements["AllowBucket"] == {
        "Sid": "AllowBucket",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": "*",
        "Condition": {
            "ArnEquals": {"aws:SourceArn": f"arn:aws:s3:::{name.get('ExistingBucketName', BUCKET)}"},
            "StringEquals": {"aws:SourceAccount": "000000000000"},
        },
    }
    assert statements["AllowRules"]["Condition"]["ArnEquals"] == {"aws:SourceArn": [_rule("TablesRule")]}
    assert "CaptureRule" not in resources("AWS::Events::Rule", Events="sqs", **name)


KEY = "arn:aws:kms:eu-central-1:123456789012:key/1"
ROLES = [one.role() for one in functions()] + ["SparkJobRole", "SparkCompactRole", "SparkPagesRole"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_use_the_key_of_the_bucket_by_way_of_s3_and_no_other(role: str) -> None:
    """Every role reads and writes objects: without the key each of their requests would be refused."""
    (use,) = [one for one in role_statements(role, KmsKeyArn=KEY) if "kms" in str(one["Action"])]
    assert use == {
        "Sid": "UseKey",
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": KEY,
        "Condition": {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}},
    }


@pytest.mark.parametrize("role", ROLES)
def test_without_a_key_no_role_may_use_one(role: str) -> None:
    assert [one["Sid"] for one in role_statements(role) if "kms" in str(one)] == []


@pytest.mark.parametrize("role", ROLES)
def test_with_a_prefix_no_object_outside_of_it_is_allowed(role: str) -> None:
    """The rest of the bucket belongs to somebody else."""
    statements = role_statements(role, ExistingBucketName="mine", KeyPrefix="data/")
    named = [resource for one in statements for resource in as_list(one["Resource"])]
    objects = [one for one in named if one.startswith("arn:aws:s3:::mine/")]
    assert objects != []
    assert [one for one in objects if not one.startswith("arn:aws:s3:::mine/data/")] == []
    assert [one for one in named if BUCKET in one] == []


@pytest.mark.parametrize("parameters", [{}, {"KmsKeyArn": KEY, "ExistingBucketName": "m" * 63, "Layout": "inline"}])
def test_iam_takes_every_policy(parameters: dict[str, str]) -> None:
    """By moto's check of the language, and by the limits of IAM: 6,144 characters in a managed policy, 10,240 in all
    policies of one role. The longest names fit as well."""
    managed = resources("AWS::IAM::ManagedPolicy", **parameters)
    roles = resources("AWS::IAM::Role", **parameters)
    sizes = {name: _valid_size(one["PolicyDocument"]) for name, one in managed.items()}
    inline = {name: sum(_valid_size(one["PolicyDocument"]) for one in role["Policies"]) for name, role in roles.items()}
    assert {name: size for name, size in sizes.items() if size > 6144 // 2} == {}
    assert {name: size for name, size in inline.items() if size > 10240 // 2} == {}


def _valid_size(policy: Json) -> int:
    text = json.dumps(policy, separators=(",", ":"))
    IAMPolicyDocumentValidator(text).validate()
    return len(text)
