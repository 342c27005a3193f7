"""A deployed stack: its state, and its queues and functions, grouped by the names of its outputs.

`CaptureQueueUrl`, `CaptureDeadLetterQueueUrl` and `CaptureFunctionName` belong to one worker, `capture`. Outputs of
parts that are not deployed are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from worm.errors import Invalid
from worm.upkeep.deployment.aws import Aws, asking
from worm.values import dataclass

DEAD_LETTERS, QUEUE, FUNCTION = "DeadLetterQueueUrl", "QueueUrl", "FunctionName"
NO_STACK = "name it with --stack or WORM_STACK; `aws cloudformation list-stacks` lists yours"
_WORKER = re.compile(r"(?P<worker>[A-Z][a-zA-Z]*?)(?P<what>DeadLetterQueueUrl|QueueUrl|FunctionName)")


@dataclass(frozen=True, slots=True)
class Stack:
    """Its status in CloudFormation."""

    name: str
    status: str
    reason: str
    created: datetime | None
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]

    @classmethod
    def read(cls, aws: Aws, name: str) -> Stack:
        if not name:
            raise Invalid("which stack?", hint=NO_STACK)
        with asking(f"the stack {name!r} cannot be read", hint=NO_STACK):
            found = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        return cls(
            name,
            str(found["StackStatus"]),
            str(found.get("StackStatusReason", "")),
            found.get("CreationTime"),
            {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", ())},
            {one["ParameterKey"]: one.get("ParameterValue", "") for one in found.get("Parameters", ())},
        )

    @property
    def url(self) -> str | None:
        """Where its documents are."""
        bucket, prefix = self.outputs.get("BucketName"), self.parameters.get("KeyPrefix", "").strip("/")
        return None if bucket is None else f"s3://{bucket}" + (f"/{prefix}" if prefix else "")

    def of_workers(self, what: str) -> dict[str, str]:
        """By the name of the worker: its queue (`QUEUE`), dead letters (`DEAD_LETTERS`) or function (`FUNCTION`)."""
        named = ((_WORKER.fullmatch(key), value) for key, value in self.outputs.items())
        return {found["worker"].lower(): value for found, value in named if found is not None and found["what"] == what}
