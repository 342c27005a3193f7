"""Creates the specs on an endpoint, only with boto3, so that it works on moto, LocalStack and similar endpoints.

ARNs come from the endpoint, not from the template, because an endpoint may have its own account id; the result maps the
template's ARNs to the created resources. Everything is safe to repeat on an endpoint that already has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from worm.dev.aws import Aws
from worm.dev.cfn import Node
from worm.dev.specs import BucketSpec, QueueSpec, RuleSpec, Template

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import LifecycleRuleTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType


@dataclass(frozen=True, slots=True)
class MadeQueue:
    spec: QueueSpec
    url: str
    arn: str


@dataclass(frozen=True, slots=True)
class Provisioned:
    """`queues` by the ARN the template gives them."""

    queues: Mapping[str, MadeQueue]


def provision(aws: Aws, template: Template) -> Provisioned:
    """Queues first, then rules, then buckets: no event may arrive before its path exists."""
    sqs = aws.sqs()
    queues: dict[str, MadeQueue] = {}
    dead_letters_first = sorted(template.queues, key=lambda spec: spec.dead_letter_arn is not None)
    for spec in dead_letters_first:
        queues[spec.arn] = _queue(sqs, spec, queues)
    events = aws.events()
    for rule in template.rules:
        _rule(events, rule, queues)
    s3 = aws.s3()
    for bucket in template.buckets:
        _bucket(s3, bucket, aws.region)
    return Provisioned(queues)


def _queue(sqs: SQSClient, spec: QueueSpec, made: Mapping[str, MadeQueue]) -> MadeQueue:
    attributes = cast("dict[QueueAttributeNameType, str]", dict(spec.attributes))
    if spec.dead_letter_arn is not None:
        target = made[spec.dead_letter_arn].arn
        attributes["RedrivePolicy"] = json.dumps(
            {"deadLetterTargetArn": target, "maxReceiveCount": spec.receive_count_max}
        )
    url = sqs.create_queue(QueueName=spec.name, Attributes=attributes)["QueueUrl"]
    if spec.policy is not None:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": spec.policy})
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return MadeQueue(spec, url, arn)


def _rule(events: EventBridgeClient, spec: RuleSpec, queues: Mapping[str, MadeQueue]) -> None:
    state = "ENABLED" if spec.enabled else "DISABLED"
    events.put_rule(Name=spec.name, EventPattern=spec.event_pattern, State=cast("Node", state))
    answer = events.put_targets(
        Rule=spec.name, Targets=[{"Id": target.id, "Arn": queues[target.arn].arn} for target in spec.targets]
    )
    if answer["FailedEntryCount"]:
        raise RuntimeError(f"targets of rule {spec.name} were refused: {answer['FailedEntries']}")


def _bucket(s3: S3Client, spec: BucketSpec, region: str) -> None:
    if region == "us-east-1":
        s3.create_bucket(Bucket=spec.name)
    else:
        s3.create_bucket(Bucket=spec.name, CreateBucketConfiguration={"LocationConstraint": cast("Node", region)})
    if spec.versioning:
        s3.put_bucket_versioning(Bucket=spec.name, VersioningConfiguration={"Status": "Enabled"})
    if spec.public_access_block:
        s3.put_public_access_block(
            Bucket=spec.name, PublicAccessBlockConfiguration=cast("Node", dict(spec.public_access_block))
        )
    if spec.lifecycle_rules:
        rules = [lifecycle_rule(rule) for rule in spec.lifecycle_rules]
        s3.put_bucket_lifecycle_configuration(Bucket=spec.name, LifecycleConfiguration={"Rules": rules})
    if spec.event_bridge:
        s3.put_bucket_notification_configuration(
            Bucket=spec.name, NotificationConfiguration={"EventBridgeConfiguration": {}}
        )


def lifecycle_rule(rule: Mapping[str, Node]) -> LifecycleRuleTypeDef:
    """A rule as the S3 API spells it (CloudFormation has its own names for expiration, id and prefix)."""
    api: dict[str, Node] = {"Status": rule["Status"], "Filter": {"Prefix": rule.get("Prefix", "")}}
    if "Id" in rule:
        api["ID"] = rule["Id"]
    if "ExpirationInDays" in rule:
        api["Expiration"] = {"Days": int(rule["ExpirationInDays"])}
    elif str(rule.get("ExpiredObjectDeleteMarker", "")).lower() == "true":
        api["Expiration"] = {"ExpiredObjectDeleteMarker": True}
    if "NoncurrentVersionExpiration" in rule:
        values = rule["NoncurrentVersionExpiration"]
        api["NoncurrentVersionExpiration"] = {name: int(value) for name, value in values.items()}
    if "AbortIncompleteMultipartUpload" in rule:
        days = int(rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"])
        api["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": days}
    return cast("LifecycleRuleTypeDef", api)
