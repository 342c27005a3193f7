"""Sending a message that can never succeed to the DLQ, with the reason as a message attribute."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from worm.errors import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

REASON_CHARACTERS_MAX = 1000


class DeadLetters:
    """The DLQ of one worker. boto3 is imported at the first dead letter, not at start: good batches never need it."""

    def __init__(self, queue_url: str) -> None:
        self._queue_url = queue_url

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> DeadLetters | None:
        """From WORM_DLQ_URL; None when it is not set."""
        url = (os.environ if environment is None else environment).get("WORM_DLQ_URL", "")
        return cls(url) if url else None

    @cached_property
    def _client(self) -> SQSClient:
        import boto3

        return boto3.client("sqs")

    def send(self, body: str, reason: str) -> None:
        """`Unavailable` when the queue did not take it."""
        from botocore.exceptions import BotoCoreError, ClientError

        printable = "".join(character if character.isprintable() else " " for character in reason)
        text = printable[:REASON_CHARACTERS_MAX] or "unknown"
        try:
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=body,
                MessageAttributes={"reason": {"DataType": "String", "StringValue": text}},
            )
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"the dead letter queue did not take the message: {error}") from error
