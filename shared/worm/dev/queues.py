"""Reads queues and moves their messages, with the SQS API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

PEEK_SECONDS = 30


def depth(sqs: SQSClient, url: str) -> tuple[int, int]:
    """The number of waiting messages (including delayed ones) and of messages in flight."""
    answer = sqs.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ],
    )["Attributes"]
    waiting = int(answer["ApproximateNumberOfMessages"]) + int(answer.get("ApproximateNumberOfMessagesDelayed", 0))
    return waiting, int(answer["ApproximateNumberOfMessagesNotVisible"])


def peek(sqs: SQSClient, url: str) -> list[MessageTypeDef]:
    """Every visible message; all stay in the queue and are visible again afterward."""
    messages = _receive_all(sqs, url)
    for message in messages:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    return messages


def move(sqs: SQSClient, source_url: str, target_url: str) -> int:
    """Moves every visible message; each is sent before it is deleted, so a failure may repeat one, but loses none."""
    messages = _receive_all(sqs, source_url)
    for message in messages:
        sqs.send_message(QueueUrl=target_url, MessageBody=message["Body"])
        sqs.delete_message(QueueUrl=source_url, ReceiptHandle=message["ReceiptHandle"])
    return len(messages)


def _receive_all(sqs: SQSClient, url: str) -> list[MessageTypeDef]:
    found: list[MessageTypeDef] = []
    while True:
        answer = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=PEEK_SECONDS,
            WaitTimeSeconds=0,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages = answer.get("Messages", [])
        if not messages:
            return found
        found += messages
