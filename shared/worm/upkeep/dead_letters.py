"""Dead letters: the contents of the dead-letter queues, the kind of each message, and sending it back where it came
from.

There are six kinds, by the content of a message:

- *rejected*: a worker sent it at once, with the attribute `reason`. SQS did not move it here, so
  `start-message-move-task` does nothing for it.
- *failed*: SQS moved it here after too many deliveries.
- *undelivered*: EventBridge or a schedule could not deliver it; the attributes `ERROR_CODE` and `TARGET_ARN` say why.
- *invocation*: Lambda's record of a scheduled invocation that failed, with the event and the error.
- *job*: the event of a Spark job run that failed or was canceled.
- *unknown*: anything else.

To *redrive* a letter means to send the body to its original queue, to invoke the function again with the same event, or
to start the same job again; only then it is deleted here. A crash in between leaves it in both places. That is safe:
events are hints, and the functions and jobs may run twice.

Reading means receiving: received messages are hidden from others, so all of them are given back at the end, at the
latest after `HIDDEN_SECONDS`. The number of received messages is limited.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urlsplit

from worm.clock import iso_seconds
from worm.errors import Invalid, NotFound, Unavailable, WormError, show
from worm.formats import JsonValue, loads
from worm.upkeep.deployment.aws import Aws, asking
from worm.upkeep.deployment.stack import DEAD_LETTERS, FUNCTION, QUEUE, Stack
from worm.upkeep.verdicts import DeadLetterFacts, LookUp
from worm.upkeep.workers.batch import MAX_MESSAGE_BYTES, REASON_ATTRIBUTE, events_of
from worm.values import dataclass

HIDDEN_SECONDS = 60
LETTERS_MAX = 1_000
RECEIVES_MAX = 300
WAIT_SECONDS = 1
"""How long to poll a queue for messages that it claims to have. Without waiting, SQS queries only some of its
servers."""
START_JOB = "emrserverless:startJobRun"
JOB_SOURCE = "aws.emr-serverless"


class LetterKind(StrEnum):
    """How it got here; see above."""

    rejected = "rejected"
    failed = "failed"
    undelivered = "undelivered"
    invocation = "invocation"
    job = "job"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `keys` has bucket and key of each event in it."""

    id: str
    queue: str
    sent: datetime
    kind: LetterKind
    reason: str
    keys: tuple[tuple[str, str], ...]
    body: str
    attributes: Mapping[str, str]
    source_arn: str | None
    receipt: str

    @property
    def key(self) -> str | None:
        return self.keys[0][1] if self.keys else None

    @property
    def is_of_job(self) -> bool:
        """Is it about a Spark job, which is then started again?"""
        return self.kind is LetterKind.job or self.attributes.get("TARGET_ARN", "").endswith(START_JOB)

    def shape(self) -> dict[str, JsonValue]:
        return {
            "id": self.id,
            "queue": self.queue,
            "sent": iso_seconds(self.sent),
            "kind": self.kind.value,
            "key": self.key,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Selects letters: all conditions must match. `key` may have `*`; `id` may be a prefix."""

    key: str | None = None
    reason: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        """Empty text would match every letter, but usually comes from an unset variable, so it is refused."""
        for name in ("key", "reason", "id"):
            if getattr(self, name) == "":
                raise Invalid(f"the {name} is empty", path=name, hint="pass a value, or leave it out")

    def has(self, letter: Letter) -> bool:
        if self.id is not None and not letter.id.startswith(self.id):
            return False
        if self.reason is not None and self.reason.casefold() not in letter.reason.casefold():
            return False
        return self.key is None or any(_matches(key, self.key) for _, key in letter.keys)


def _matches(key: str, wanted: str) -> bool:
    """Brackets are characters of a key, not of a pattern."""
    return key == wanted or fnmatchcase(key, wanted.replace("[", "[[]"))


class DeadLetterQueue:
    """One dead-letter queue. Without `source_url` and `function`, the queue and the letters themselves say where a
    letter came from."""

    def __init__(
        self, aws: Aws, name: str, url: str, *, source_url: str | None = None, function: str | None = None
    ) -> None:
        self._aws = aws
        self.name = name
        self._url = url
        self._source_url = source_url
        self._function = function
        self.more = 0
        """After `letters()`: about how many there are besides the received ones."""

    def _asking(self, what: str) -> AbstractContextManager[None]:
        return asking(f"the dead-letter queue {self.name!r} {what}", hint="check --queue, --stack and your policy")

    def count(self) -> int:
        """About how many letters there are, including those that other readers have."""
        waiting, hidden, _ = self._counts()
        return waiting + hidden

    def _counts(self) -> tuple[int, int, datetime]:
        """How many can be received, how many are hidden, and when SQS counted them, by its own clock."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        with self._asking("cannot be read"):
            found = self._aws.client("sqs").get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
            answered = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        waiting, hidden = (int(found["Attributes"][name]) for name in names)
        return waiting, hidden, answered + timedelta(seconds=1)  # the header has whole seconds

    @contextmanager
    def letters(self) -> Iterator[Iterable[Letter]]:
        """The letters, each once and roughly oldest first, up to `LETTERS_MAX`. Letters that arrive during the block
        are left out: otherwise a message that is redriven and rejected again would loop. At the end of the block the
        undeleted ones are given back."""
        held: dict[str, str] = {}
        with closing(self._received(held)) as received:
            try:
                yield received
            finally:
                self._give_back(list(held.values()))

    def _received(self, held: dict[str, str]) -> Generator[Letter]:
        waiting, hidden, until = self._counts()
        for _ in range(RECEIVES_MAX):
            found = self._receive(WAIT_SECONDS if len(held) < waiting else 0)
            fresh = [one for one in found if one["MessageId"] not in held]
            held.update({one["MessageId"]: one["ReceiptHandle"] for one in found})
            for letter in (_letter(self.name, one) for one in fresh):
                if letter.sent <= until:
                    yield letter
            if not found or len(held) >= LETTERS_MAX:
                break
        self.more = max(0, waiting - len(held)) + hidden

    def _receive(self, wait_seconds: int) -> list[dict[str, Any]]:
        with self._asking("cannot be read"):
            answer = self._aws.client("sqs").receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=HIDDEN_SECONDS,
                WaitTimeSeconds=wait_seconds,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        return cast("list[dict[str, Any]]", answer.get("Messages", []))

    def _give_back(self, receipts: list[str]) -> None:
        """Includes deleted ones: SQS answers for each one separately. A message that cannot be given back reappears
        after `HIDDEN_SECONDS`, so no error is raised for it."""
        for at in range(0, len(receipts), 10):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
                for number, receipt in enumerate(receipts[at : at + 10])
            ]
            try:
                with self._asking("did not accept returned messages"):
                    self._aws.client("sqs").change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
            except WormError:
                return

    def drop(self, letter: Letter) -> None:
        with self._asking("did not delete the message"):
            self._aws.client("sqs").delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)

    def redrive(self, letter: Letter, to: str | None = None, *, dry_run: bool = False) -> str:
        """Send it back where it came from (or to the queue `to`), then delete it here. Returns what was done."""
        done = self._send(letter, to, dry_run)
        if not dry_run:
            try:
                self.drop(letter)
            except WormError as error:
                error.hint = "it was sent, but is still here: it will be processed twice, which is safe; drop it"
                raise
        return done

    def _send(self, letter: Letter, to: str | None, dry_run: bool) -> str:
        if to is None and letter.is_of_job:
            return self._start_job(letter, dry_run)
        queue = to or self._source_url or self._source(letter)
        if queue is not None:
            if not dry_run:
                with asking(f"the queue {queue} did not accept the message"):
                    self._aws.client("sqs").send_message(QueueUrl=queue, MessageBody=letter.body)
            return f"sent to {queue.rpartition('/')[2]}"
        function = self._function or _function(letter)
        if function is None:
            raise Invalid(
                f"the origin of the message {letter.id} is unknown",
                hint="name a queue with --to, or drop the message",
            )
        payload = json.dumps(_payload(letter)).encode()
        if not dry_run:
            with asking(f"the function {function} was not invoked"):
                self._aws.client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=payload)
        return f"invoked {function}"

    def _source(self, letter: Letter) -> str | None:
        """The queue that uses this one for its dead letters; if there are several, the one that the message came
        from."""
        with self._asking("does not say which queue uses it"):
            found = self._aws.client("sqs").list_dead_letter_source_queues(QueueUrl=self._url).get("queueUrls", [])
        if letter.source_arn is not None:
            name = letter.source_arn.rpartition(":")[2]
            found = [url for url in found if url.rpartition("/")[2] == name] or found
        if len(found) > 1:
            raise Invalid(f"{len(found)} queues send their dead letters here", hint="name the right one with --to")
        return str(found[0]) if found else None

    def _start_job(self, letter: Letter, dry_run: bool) -> str:
        client = self._aws.client("emr-serverless")
        message = cast("dict[str, Any]", _object(letter.body))
        with asking("the Spark job cannot be started again", hint="see docs/emr.md, 'When a job fails'"):
            request = _again(client, message) if letter.kind is LetterKind.job else _lowered(message)
            if not dry_run:
                client.start_job_run(**{name: value for name, value in request.items() if name != "clientToken"})
        return f"started {request.get('name') or 'the job'}"


def queues_of(aws: Aws, stack: Stack, name: str | None = None) -> list[DeadLetterQueue]:
    """The dead-letter queues of a stack, or of one worker."""
    urls, sources, functions = stack.of_workers(DEAD_LETTERS), stack.of_workers(QUEUE), stack.of_workers(FUNCTION)
    if name is not None and name not in urls:
        known = ", ".join(sorted(urls)) or "none at all"
        raise NotFound(f"the stack {stack.name!r} has no dead-letter queue for {show(name)}", hint=f"it has {known}")
    chosen = sorted(urls) if name is None else [name]
    return [
        DeadLetterQueue(aws, one, urls[one], source_url=sources.get(one), function=functions.get(one)) for one in chosen
    ]


def read_queues(aws: Aws, stack: str, name: str | None = None) -> tuple[list[DeadLetterQueue], str | None]:
    """The dead-letter queues of the stack with this name, or of one of its workers; and where its documents are."""
    found = Stack.read(aws, stack)
    return queues_of(aws, found, name), found.url


def find_letters(queues: Sequence[DeadLetterQueue], url: str) -> LookUp | None:
    """Finds the letters about a key of the location at this URL; they stay in the queues. None: there are no queues, or
    it is no bucket."""
    place = urlsplit(url)
    if not queues or place.scheme != "s3":
        return None
    prefix = place.path.strip("/")

    def look_up(key: str) -> Sequence[DeadLetterFacts]:
        wanted = place.netloc, f"{prefix}/{key}" if prefix else key
        found = [one for queue in queues for one in _about(queue, wanted)]
        return [DeadLetterFacts(one.reason, iso_seconds(one.sent)) for one in found]

    return look_up


def _about(queue: DeadLetterQueue, wanted: tuple[str, str]) -> list[Letter]:
    try:
        with queue.letters() as letters:
            found = [one for one in letters if wanted in one.keys]
    except (NotFound, Unavailable) as error:
        raise Unavailable(error.message, hint="check --dlq (WORM_DLQ_URL)") from error
    return sorted(found, key=lambda one: (one.reason, one.sent))


# Contents of a message


def _letter(queue: str, message: Mapping[str, Any]) -> Letter:
    given, system = message.get("MessageAttributes", {}), message.get("Attributes", {})
    attributes = {name: str(one.get("StringValue", "")) for name, one in sorted(given.items())}
    events = _events(message["Body"])
    kind, reason = _told(message["Body"], attributes, is_event=events is not None)
    return Letter(
        message["MessageId"],
        queue,
        datetime.fromtimestamp(int(system.get("SentTimestamp", "0")) / 1000, UTC),
        kind,
        " ".join(reason.split()),
        events or (),
        message["Body"],
        attributes,
        system.get("DeadLetterQueueSourceArn"),
        message["ReceiptHandle"],
    )


def _told(body: str, attributes: Mapping[str, str], *, is_event: bool) -> tuple[LetterKind, str]:
    if REASON_ATTRIBUTE in attributes:
        return LetterKind.rejected, attributes[REASON_ATTRIBUTE] or "unknown"
    if "ERROR_CODE" in attributes or "TARGET_ARN" in attributes:
        told = [attributes.get(name, "") for name in ("ERROR_CODE", "ERROR_MESSAGE")]
        return LetterKind.undelivered, ": ".join(filter(None, told)) or "it could not be delivered"
    message = _object(body)
    if message is None:
        return LetterKind.unknown, "the message is not a JSON object"
    if "requestContext" in message:
        return LetterKind.invocation, _failure(message)
    detail = message.get("detail")
    if message.get("source") == JOB_SOURCE and isinstance(detail, dict):
        told = [str(detail.get(name) or "") for name in ("jobRunName", "state", "stateDetails")]
        return LetterKind.job, " ".join(filter(None, told)) or "the job failed"
    if is_event:
        return LetterKind.failed, "it failed too often"
    return LetterKind.unknown, "the message is neither an S3 event nor a failure of a function or a job"


def _failure(envelope: Mapping[str, JsonValue]) -> str:
    """What Lambda says about a failed invocation."""
    payload, context = envelope.get("responsePayload"), envelope.get("requestContext")
    if isinstance(payload, dict):
        told = [str(payload.get(name) or "") for name in ("errorType", "errorMessage")]
        if any(told):
            return ": ".join(filter(None, told))
    condition = context.get("condition") if isinstance(context, dict) else None
    return str(condition or "the invocation failed")


def _function(letter: Letter) -> str | None:
    """The function named in the letter."""
    envelope = _object(letter.body) or {}
    context = envelope.get("requestContext")
    named = context.get("functionArn") if isinstance(context, dict) else None
    arn = str(named or letter.attributes.get("TARGET_ARN", ""))
    parts = arn.split(":")
    return parts[6] if len(parts) > 6 and parts[2] == "lambda" else None


def _payload(letter: Letter) -> JsonValue:
    """The event that the function was invoked with."""
    message = _object(letter.body or "{}")
    if message is None:
        raise Invalid(f"the message {letter.id} is not a JSON object, so no function can process it", hint="drop it")
    if "requestContext" not in message:
        return message
    return message.get("requestPayload") or {}


def _again(client: Any, event: Mapping[str, Any]) -> dict[str, Any]:
    """The request that starts the job of the event again."""
    detail = event["detail"]
    named = {"applicationId": detail.get("applicationId", ""), "jobRunId": detail.get("jobRunId", "")}
    run = client.get_job_run(**named)["jobRun"]
    kept = ("name", "jobDriver", "configurationOverrides", "tags", "executionTimeoutMinutes", "retryPolicy", "mode")
    return {
        "applicationId": run["applicationId"],
        "executionRoleArn": run["executionRole"],
        **{name: run[name] for name in kept if run.get(name)},
    }


def _lowered(value: Any) -> Any:
    """The input of a schedule has the members of a request, capitalized."""
    if isinstance(value, dict):
        return {name[:1].lower() + name[1:]: _lowered(one) for name, one in value.items()}
    return [_lowered(one) for one in value] if isinstance(value, list) else value


def _object(body: str) -> dict[str, JsonValue] | None:
    try:
        found = loads(body.encode("utf-8", "surrogatepass"), max_bytes=MAX_MESSAGE_BYTES)
    except Invalid:
        return None
    return found if isinstance(found, dict) else None


def _events(body: str) -> tuple[tuple[str, str], ...] | None:
    """Bucket and key of each S3 event; None for a message without events."""
    try:
        return tuple((bucket, hint.key) for bucket, hint in events_of(body))
    except Invalid:
        return None
