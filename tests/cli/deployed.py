"""A small stack on moto's CloudFormation, with the outputs of template.yaml, for `worm dlq` and `worm doctor`."""

from __future__ import annotations

import io
import json
import urllib.request
import zipfile
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import boto3

from tests.emulators import CREDENTIALS

ACCOUNT = "000000000000"
WORKERS = ("capture", "tables", "sweep")
WITH_QUEUE = ("capture", "tables")
MEMORY_MB = {"capture": 1024, "tables": 1769, "sweep": 3008}


def template(name: str, bucket: str) -> dict[str, Any]:
    """Queues and outputs as template.yaml names them; without rules and functions, which moto would not run."""
    resources: dict[str, Any] = {}
    outputs: dict[str, Any] = {"BucketName": {"Value": bucket}}
    for worker in (*WORKERS, "spark"):
        title = worker.capitalize()
        resources[f"{title}Dlq"] = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": f"{name}-{worker}-dlq"}}
        outputs[f"{title}DeadLetterQueueUrl"] = {"Value": {"Ref": f"{title}Dlq"}}
        if worker in WITH_QUEUE:
            policy = {"deadLetterTargetArn": {"Fn::GetAtt": [f"{title}Dlq", "Arn"]}, "maxReceiveCount": 5}
            properties = {"QueueName": f"{name}-{worker}", "RedrivePolicy": policy}
            resources[f"{title}Queue"] = {"Type": "AWS::SQS::Queue", "Properties": properties}
            outputs[f"{title}QueueUrl"] = {"Value": {"Ref": f"{title}Queue"}}
        if worker in WORKERS:
            outputs[f"{title}FunctionName"] = {"Value": f"{name}-{worker}"}
    parameters = {"KeyPrefix": {"Type": "String", "Default": ""}}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Parameters": parameters,
        "Resources": resources,
        "Outputs": outputs,
    }


@cache
def _client(endpoint: str, service: str) -> Any:
    """Making one takes longer than most calls do."""
    credentials = {name.lower(): value for name, value in CREDENTIALS.items() if "REGION" not in name}
    return cast(Any, boto3).client(service, endpoint_url=endpoint, region_name="us-east-1", **credentials)


@dataclass
class Deployed:
    """The stack, and what tests do to it."""

    endpoint: str
    name: str
    bucket: str
    prefix: str = ""

    def client(self, service: str) -> Any:
        return _client(self.endpoint, service)

    def create(self) -> Deployed:
        self.client("cloudformation").create_stack(
            StackName=self.name,
            TemplateBody=json.dumps(template(self.name, self.bucket)),
            Parameters=[{"ParameterKey": "KeyPrefix", "ParameterValue": self.prefix}],
        )
        return self

    def create_functions(self) -> Deployed:
        """Without Docker: moto takes an invocation and does nothing."""
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/config",
            data=b'{"lambda": {"use_docker": false}}',
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("handler.py", "def lambda_handler(event, context): ...")
        role = self.client("iam").create_role(RoleName=f"{self.name}-role", AssumeRolePolicyDocument="{}")
        for worker in WORKERS:
            self.client("lambda").create_function(
                FunctionName=f"{self.name}-{worker}",
                Runtime="python3.13",
                Handler="handler.lambda_handler",
                Role=role["Role"]["Arn"],
                Code={"ZipFile": packed.getvalue()},
                MemorySize=MEMORY_MB[worker],
            )
        return self

    def queue(self, name: str) -> str:
        return str(self.client("sqs").get_queue_url(QueueName=f"{self.name}-{name}")["QueueUrl"])

    def send(self, queue: str, body: str, **attributes: str) -> None:
        self.client("sqs").send_message(
            QueueUrl=self.queue(queue),
            MessageBody=body,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        )

    def waiting(self, queue: str) -> list[str]:
        """The bodies that can be received now; they stay."""
        found = self.client("sqs").receive_message(
            QueueUrl=self.queue(queue), MaxNumberOfMessages=10, VisibilityTimeout=0, WaitTimeSeconds=0
        )
        return sorted(one["Body"] for one in found.get("Messages", ()))
