"""How AWS names the resources of a template: the property that gives a resource its name, and the ARN it gets."""

from __future__ import annotations

from worm.dev.cfn import ACCOUNT_ID, PARTITION

NAME_PROPERTY = {
    "AWS::S3::Bucket": "BucketName",
    "AWS::SQS::Queue": "QueueName",
    "AWS::Events::Rule": "Name",
    "AWS::Serverless::Function": "FunctionName",
    "AWS::Scheduler::Schedule": "Name",
    "AWS::Logs::LogGroup": "LogGroupName",
}
_ARN = {
    "AWS::S3::Bucket": "s3:::{name}",
    "AWS::SQS::Queue": "sqs:{region}:{account}:{name}",
    "AWS::Events::Rule": "events:{region}:{account}:rule/{name}",
    "AWS::Serverless::Function": "lambda:{region}:{account}:function:{name}",
    "AWS::Scheduler::Schedule": "scheduler:{region}:{account}:schedule/default/{name}",
    "AWS::Logs::LogGroup": "logs:{region}:{account}:log-group:{name}:*",
    "AWS::IAM::Role": "iam::{account}:role/{name}",
    "AWS::IAM::ManagedPolicy": "iam::{account}:policy/{name}",
    "AWS::EMRServerless::Application": "emr-serverless:{region}:{account}:/applications/{name}",
}


def arn(kind: str, region: str, name: str) -> str:
    """`KeyError` for a resource type whose ARN is not needed here."""
    if kind not in _ARN:
        raise KeyError(f"attribute Arn of {kind}")
    return f"arn:{PARTITION}:" + _ARN[kind].format(region=region, account=ACCOUNT_ID, name=name)
