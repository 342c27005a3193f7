"""From a Lambda invocation to a worker: SQS records in, partial-batch answer out, logs and metrics between.

Every failure is logged with its reason. A rejected message goes to the DLQ at once, with the reason as a message
attribute (there is no use in trying again); if that fails, it counts as failed and the queue takes it there later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from worm.clock import Ids, SystemClock, iso_seconds
from worm.errors import Invalid, Unavailable
from worm.session import Session, Settings
from worm.store.s3 import S3Store
from worm.workers.batch import BatchOutcome, Message, hints_of

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef


Event = Mapping[str, Any]
PartialBatchAnswer = dict[str, list[dict[str, str]]]
SAFETY_SECONDS = 20.0
VALUES_SHOWN = 20


@cache
def session() -> Session:
    """One per process, made at the first invocation from the environment."""
    settings = Settings.from_environment()
    clock = SystemClock()
    ids = Ids.system(clock)
    store = S3Store(settings.bucket, settings.prefix, role=settings.role, ids=ids, clock=clock, tag_derived=True)
    return Session(store, settings, ids=ids, clock=clock)


def run_batch(
    event: Event,
    run: Callable[[Sequence[Message]], BatchOutcome],
    *,
    logger: Logger,
    metrics: Metrics,
    dead_letters: DeadLetters | None = None,
) -> PartialBatchAnswer:
    """Run a worker on the records of an SQS event."""
    messages = [_message(record) for record in event["Records"]]
    requests = session().store.requests
    with requests.measure() as spent:
        outcome = run(messages)
    failed = set(outcome.failed)
    bodies = {message.id: message.body for message in messages}
    letters = dead_letters or DeadLetters.from_environment()
    for message_id, reason in outcome.rejected.items():
        logger.error("rejected", message_id=message_id, reason=str(reason), key=reason.key)
        if not _bury(letters, bodies[message_id], str(reason), logger):
            failed.add(message_id)
    for message_id, error in outcome.failed.items():
        logger.error("failed", message_id=message_id, reason=str(error), exc_info=error)
    metrics.add_metric("Messages", MetricUnit.Count, len(messages))
    metrics.add_metric("Recorded", MetricUnit.Count, outcome.recorded)
    metrics.add_metric("Ignored", MetricUnit.Count, outcome.ignored)
    metrics.add_metric("Rejected", MetricUnit.Count, len(outcome.rejected))
    metrics.add_metric("Failed", MetricUnit.Count, len(outcome.failed))
    metrics.add_metric("Attempts", MetricUnit.Count, outcome.attempts)
    metrics.add_metric("UniqueConflicts", MetricUnit.Count, sum(map(len, outcome.conflicts.values())))
    for index, values in outcome.conflicts.items():
        logger.warning("several documents have one unique value", index=index, values=values[:VALUES_SHOWN])
    metrics.add_metric("StoreRequests", MetricUnit.Count, spent["total"])
    logger.info(
        "batch",
        messages=len(messages),
        recorded=outcome.recorded,
        ignored=outcome.ignored,
        rejected=len(outcome.rejected),
        failed=len(outcome.failed),
        attempts=outcome.attempts,
        requests=spent,
    )
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in sorted(failed)]}


def _message(record: Mapping[str, Any]) -> Message:
    deliveries = record.get("attributes", {}).get("ApproximateReceiveCount", "1")
    return Message(record["messageId"], record["body"], int(deliveries))


def _bury(letters: DeadLetters | None, body: str, reason: str, logger: Logger) -> bool:
    if letters is None:
        return False
    try:
        letters.send(body, reason)
    except Unavailable as error:
        logger.error("dead letter not sent", reason=str(error))
        return False
    return True


def seconds_left(context: Any) -> Callable[[], float]:
    """The deadline of an invocation: what remains, less what finishing needs."""

    def left() -> float:
        return float(context.get_remaining_time_in_millis()) / 1000 - SAFETY_SECONDS

    return left


REASON_CHARACTERS_MAX = 1000
PEEKS_MAX = 20
"""How often a queue is asked for messages when one is looked for; each answer has up to ten."""
PEEK_SECONDS = 60


class DeadLetters:
    """The DLQ of one worker. boto3 is imported at the first dead letter, not at start: good batches never need it."""

    def __init__(self, queue_url: str, *, endpoint_url: str | None = None) -> None:
        self._queue_url = queue_url
        self._endpoint_url = endpoint_url

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> DeadLetters | None:
        """From WORM_DLQ_URL; None when it is not set."""
        url = (os.environ if environment is None else environment).get("WORM_DLQ_URL", "")
        return cls(url) if url else None

    @cached_property
    def _client(self) -> SQSClient:
        import boto3

        return boto3.client("sqs", endpoint_url=self._endpoint_url)

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

    def about(self, key: str, *, bucket: str, prefix: str = "") -> list[tuple[str, str]]:
        """Reason and time of the messages about this key, among the first few hundred. They stay in the queue."""
        seen: dict[str, MessageTypeDef] = {}
        try:
            for _ in range(PEEKS_MAX):
                found = self._peek()
                if not found:
                    break
                seen.update({message["MessageId"]: message for message in found})
        finally:
            self._release(list(seen.values()))
        return sorted(_letter(one) for one in seen.values() if _is_about(one["Body"], key, bucket, prefix))

    def _peek(self) -> list[MessageTypeDef]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=PEEK_SECONDS,
                MessageAttributeNames=["reason"],
                MessageSystemAttributeNames=["SentTimestamp"],
            )
        except (BotoCoreError, ClientError, ValueError) as error:
            raise Unavailable(
                f"the dead letter queue cannot be read: {error}", hint="look at --dlq (WORM_DLQ_URL)"
            ) from error
        return answer.get("Messages", [])

    def _release(self, messages: Sequence[MessageTypeDef]) -> None:
        """Others may receive them at once; if that fails, after a minute."""
        from botocore.exceptions import BotoCoreError, ClientError

        for at in range(0, len(messages), 10):
            with suppress(BotoCoreError, ClientError):
                self._client.change_message_visibility_batch(
                    QueueUrl=self._queue_url,
                    Entries=[
                        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                        for number, message in enumerate(messages[at : at + 10])
                    ],
                )


def _letter(message: MessageTypeDef) -> tuple[str, str]:
    attribute = message.get("MessageAttributes", {}).get("reason")
    reason = None if attribute is None else attribute.get("StringValue")
    sent = datetime.fromtimestamp(int(message.get("Attributes", {}).get("SentTimestamp", "0")) / 1000, UTC)
    return reason or "it failed too often", iso_seconds(sent)


def _is_about(body: str, key: str, bucket: str, prefix: str) -> bool:
    try:
        return any(hint.key == key for hint in hints_of(body, bucket=bucket, prefix=prefix))
    except Invalid:
        return False  # no event, so of no key
