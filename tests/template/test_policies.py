"""The simulator of policies: what AWS's documentation says of evaluation, and that nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.template.policies import NotUnderstood, Policy, is_allowed, is_like
from tests.template.stack import Roles, Stack
from worm.dev.iam import Call, Question

BUCKET = "arn:aws:s3:::b"


def _statement(effect: str = "Allow", **others: Any) -> dict[str, Any]:
    return {"Sid": "S", "Effect": effect, "Action": "s3:GetObject", "Resource": f"{BUCKET}/*", **others}


def _says(statement: dict[str, Any], action: str = "s3:GetObject", key: str = "/k", **context: str) -> str:
    return Policy([statement]).says(Question(action, BUCKET + key, context))


@pytest.mark.parametrize(
    ("text", "pattern", "fits"),
    [
        ("a/b/c", "a/*", True),
        ("a/b\nc", "a/*", True),
        ("a/b", "a/?", True),
        ("a/bb", "a/?", False),
        ("a.b", "a?b", True),
        ("axb", "a.b", False),
        ("ab", "a", False),
        ("[a]", "[a]", True),
    ],
)
def test_a_star_is_any_text_and_a_question_mark_any_character(text: str, pattern: str, fits: bool) -> None:
    assert is_like(text, pattern) is fits


def test_an_action_is_the_same_in_capitals_and_a_resource_is_not() -> None:
    assert _says(_statement(Action="s3:getobject")) == "Allow"
    assert _says(_statement(Resource="arn:aws:s3:::B/*")) == ""


def test_a_denial_counts_more_than_any_permission_of_any_policy() -> None:
    question = Question("s3:GetObject", f"{BUCKET}/k")
    allowing, denying = Policy([_statement()]), Policy([_statement("Deny")])
    assert is_allowed(question, [allowing])
    assert not is_allowed(question, [allowing, denying])
    assert not is_allowed(question, [denying])
    assert not is_allowed(question, [])


@pytest.mark.parametrize(
    ("condition", "context", "fits"),
    [
        ({"Bool": {"aws:SecureTransport": "false"}}, {"aws:SecureTransport": "false"}, True),
        ({"Bool": {"aws:SecureTransport": "false"}}, {"aws:SecureTransport": "true"}, False),
        ({"NumericLessThan": {"s3:TlsVersion": "1.2"}}, {"s3:TlsVersion": "1.1"}, True),
        ({"NumericLessThan": {"s3:TlsVersion": "1.2"}}, {"s3:TlsVersion": "1.3"}, False),
        ({"NumericLessThan": {"s3:TlsVersion": "1.2"}}, {}, False),
        ({"Null": {"s3:if-none-match": "true"}}, {}, True),
        ({"Null": {"s3:if-none-match": "true"}}, {"s3:if-none-match": "*"}, False),
        ({"StringLike": {"s3:prefix": ["a/*", "b/*"]}}, {"s3:prefix": "b/c"}, True),
        ({"StringLike": {"s3:prefix": "a/*"}}, {}, False),
        ({"StringLikeIfExists": {"s3:prefix": "a/*"}}, {}, True),
        ({"StringEquals": {"kms:ViaService": "s3.x"}}, {"kms:ViaService": "s3.x"}, True),
        ({"StringEquals": {"kms:ViaService": "s3.*"}}, {"kms:ViaService": "s3.x"}, False),
        ({"ArnLike": {"aws:SourceArn": "arn:*:rule/r"}}, {"aws:SourceArn": "arn:aws:rule/r"}, True),
        ({"ArnNotLike": {"aws:PrincipalArn": "arn:*:role/r"}}, {"aws:PrincipalArn": "arn:x:role/s"}, True),
        ({"StringEquals": {"a": "1"}, "Bool": {"b": "true"}}, {"a": "1", "b": "false"}, False),
    ],
)
def test_all_conditions_of_a_statement_must_hold(
    condition: dict[str, Any], context: dict[str, str], fits: bool
) -> None:
    assert (_says(_statement(Condition=condition), **context) == "Allow") is fits


def test_a_policy_of_a_resource_is_for_whom_it_names() -> None:
    service = _statement(Principal={"Service": "events.amazonaws.com"})
    assert _says(service, **{"aws:PrincipalServiceName": "events.amazonaws.com"}) == "Allow"
    assert _says(service, **{"aws:PrincipalArn": "arn:aws:iam::1:role/r"}) == ""
    role = _statement(Principal={"AWS": ["arn:aws:iam::1:role/r"]})
    assert _says(role, **{"aws:PrincipalArn": "arn:aws:iam::1:role/r"}) == "Allow"
    assert _says(role, **{"aws:PrincipalArn": "arn:aws:iam::1:role/s"}) == ""


@pytest.mark.parametrize(
    "others",
    [
        {"NotAction": "s3:PutObject"},
        {"NotResource": "*"},
        {"NotPrincipal": "*"},
        {"Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01"}}},
        {"Condition": {"ForAnyValue:StringLike": {"s3:prefix": "a"}}},
        {"Resource": f"{BUCKET}/${{aws:username}}/*"},
        {"Condition": {"StringLike": {"s3:prefix": "${aws:username}/*"}}},
        {"Effect": "Maybe"},
    ],
)
def test_what_is_not_evaluated_here_is_refused(others: dict[str, Any]) -> None:
    """A condition that were taken for true would prove nothing."""
    with pytest.raises(NotUnderstood):
        Policy([{**_statement(), **others}])


def test_a_grant_is_unused_until_a_question_needs_it() -> None:
    policy = Policy([_statement(Action=["s3:GetObject", "s3:PutObject"], Resource=[f"{BUCKET}/a/*", f"{BUCKET}/b/*"])])
    policy.says(Question("s3:GetObject", f"{BUCKET}/a/1"))
    assert policy.used == {("S", "s3:GetObject", f"{BUCKET}/a/*")}
    assert len(policy.grants() - policy.used) == 3


# -- a template with nested stacks

ROOT = """
Parameters: {Prefix: {Type: String, Default: ""}}
Resources:
  Bucket: {Type: AWS::S3::Bucket}
  Nested:
    Type: AWS::Serverless::Application
    Properties:
      Location: nested.yaml
      Parameters: {BucketArn: !GetAtt Bucket.Arn, Prefix: !Ref Prefix}
  Function:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: functions/worker/, Role: !GetAtt Nested.Outputs.RoleArn}
"""
NESTED = """
Parameters: {BucketArn: {Type: String}, Prefix: {Type: String}}
Resources:
  Shared:
    Type: AWS::IAM::ManagedPolicy
    Properties:
      PolicyDocument:
        Version: "2012-10-17"
        Statement: [{Sid: Read, Effect: Allow, Action: "s3:GetObject", Resource: !Sub "${BucketArn}/${Prefix}*"}]
  Role:
    Type: AWS::IAM::Role
    Properties:
      ManagedPolicyArns: [!Ref Shared]
      Policies:
        - PolicyName: own
          PolicyDocument:
            Version: "2012-10-17"
            Statement: [{Sid: Write, Effect: Allow, Action: "s3:PutObject", Resource: !Sub "${BucketArn}/w/*"}]
Outputs: {RoleArn: {Value: !GetAtt Role.Arn}}
"""


def _roles(folder: Any, root: str = ROOT, nested: str = NESTED, **parameters: str) -> Roles:
    (folder / "template.yaml").write_text(root)
    (folder / "nested.yaml").write_text(nested)
    return Roles(Stack(folder / "template.yaml", parameters))


def test_a_role_has_its_own_and_its_managed_policies_across_nested_stacks(tmp_path: Any) -> None:
    roles = _roles(tmp_path, Prefix="p/")
    calls = {
        Call("worker", "s3", method, f"worm-dev-bucket/{key}") for method in ("GET", "PUT") for key in ("p/a", "w/a")
    }
    assert roles.refused(calls) == [
        "worker: s3:GetObject on arn:aws:s3:::worm-dev-bucket/w/a (GET, 200)",
        "worker: s3:PutObject on arn:aws:s3:::worm-dev-bucket/p/a (PUT, 200)",
    ]
    assert roles.unused("worker") == set()


def test_a_permission_that_nobody_used_is_named_with_its_policy(tmp_path: Any) -> None:
    assert _roles(tmp_path).unused("worker") == {
        ("Shared", "Read", "s3:GetObject", "arn:aws:s3:::worm-dev-bucket/*"),
        ("Role", "Write", "s3:PutObject", "arn:aws:s3:::worm-dev-bucket/w/*"),
    }


@pytest.mark.parametrize(
    ("root", "nested"),
    [
        (ROOT, NESTED.replace("[!Ref Shared]", "[arn:aws:iam::aws:policy/AdministratorAccess]")),
        (ROOT.replace("Role: !GetAtt Nested.Outputs.RoleArn", "Policies: [AmazonS3FullAccess]"), NESTED),
    ],
    ids=["a policy of AWS", "a role that SAM makes"],
)
def test_a_role_that_the_template_does_not_spell_out_is_refused(tmp_path: Any, root: str, nested: str) -> None:
    with pytest.raises(NotUnderstood):
        _roles(tmp_path, root, nested)


QUEUES = """
Resources:
  One: {Type: AWS::SQS::Queue}
  Other: {Type: AWS::SQS::Queue}
  Policy:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref One]
      PolicyDocument:
        Version: "2012-10-17"
        Statement: [{Effect: Allow, Principal: "*", Action: "sqs:SendMessage", Resource: "*"}]
"""


def test_the_policy_of_a_queue_says_nothing_of_another_queue(tmp_path: Any) -> None:
    (tmp_path / "template.yaml").write_text(QUEUES)
    roles, queue = Roles(Stack(tmp_path / "template.yaml")), "arn:aws:sqs:us-east-1:000000000000:worm-dev-{}"
    assert [roles.may("", "sqs:SendMessage", queue.format(one)) for one in ("One", "Other")] == [True, False]
