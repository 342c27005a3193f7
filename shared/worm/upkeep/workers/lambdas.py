"""Connects Lambda invocations to workers: events, answers, logs and metrics.

Every failure is logged with its reason, the key, the model or database, the change set where there is one, the id of
the invocation, and S3's id of the request that failed. A rejected message goes to the DLQ at once, with the reason as a
message attribute (retrying is pointless); if that fails, it counts as failed and the queue moves it there later.

If some messages of a batch failed, the answer names them, and the queue delivers them again. If *every* message failed,
the invocation fails: an outage, such as a removed permission, then shows up as errors of the function within a minute.
The queue delivers all of them again, as it would anyway. This also holds for a batch of one message: in a quiet bucket
every batch has one message, and a transient fault is a single error in one minute, which triggers no alarm.

Before the first `worm push` there is nothing to do. Messages are done (the push adopts existing documents), and a
scheduled run answers that there is no schema yet. If somebody deleted the schema, that is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

try:
    from aws_lambda_powertools import Logger, Metrics
    from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
    from aws_lambda_powertools.metrics import MetricUnit
except ModuleNotFoundError as error:
    needs = "worm.upkeep.workers.lambdas needs the package aws-lambda-powertools: pip install 's3worm[api]'"
    raise ModuleNotFoundError(needs, name=error.name) from error

from worm.clock import Deadline, Ids, SystemClock
from worm.errors import Invalid, NotFound, Unavailable, WormError
from worm.store import S3Store, metered
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import REASON_ATTRIBUTE, BatchOutcome, Message, hints_of

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


Event = Mapping[str, Any]
PartialBatchAnswer = dict[str, list[dict[str, str]]]
ScheduleAnswer = list[dict[str, Any]] | dict[str, str]
WorkerT = TypeVar("WorkerT")
AnswerT = TypeVar("AnswerT")
Handler = Callable[[dict[str, Any], Any], AnswerT]
NAMESPACE = "S3Worm"
SAFETY_SECONDS = 20.0
VALUES_SHOWN = 20
Facts = Mapping[str, str | None]
NO_FACTS: Facts = {}
NO_SCHEMA = "no schema yet"
READS = ("GET", "HEAD")
WRITES = ("PUT", "COPY", "POST", "LIST", "VERSIONS")
"""Kinds of requests by their price in S3. A DELETE is free."""


class Reporting:
    """One Lambda function: its logger, its metrics, and the report of each invocation. Log lines of the library look
    like those of the function, and follow its level."""

    def __init__(self) -> None:
        self._is_cold = True
        self.logger = Logger()
        self.metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE") or NAMESPACE)
        stack = os.environ.get("WORM_STACK", "")
        if stack:
            self.metrics.set_default_dimensions(stack=stack)
        copy_config_to_registered_loggers(self.logger, include={"worm"})

    def handler(self, handle: Handler[AnswerT]) -> Handler[AnswerT]:
        """Decorates the handler: its log lines name the invocation, and its metrics are written even if it fails."""

        @wraps(handle)
        def reported(event: dict[str, Any], context: Any) -> AnswerT:
            spent: Mapping[str, int] = {}
            try:
                self._count_cold_start()
                with self._measured() as spent:
                    return handle(event, context)
            except Exception as error:
                self.log_failure("invocation failed", error)
                raise
            finally:
                self._count_requests(spent)

        decorated: Handler[AnswerT] = self.logger.inject_lambda_context(self.metrics.log_metrics(reported))
        return decorated

    def _measured(self) -> AbstractContextManager[Mapping[str, int]]:
        """The requests of the invocation to its store, by kind; complete after the block."""
        return _requests()

    def _count_requests(self, spent: Mapping[str, int]) -> None:
        self.count("StoreRequests", sum(number for kind, number in spent.items() if kind != "total"))
        self.count("ReadRequests", sum(spent.get(kind, 0) for kind in READS))
        self.count("WriteRequests", sum(spent.get(kind, 0) for kind in WRITES))

    def _count_cold_start(self) -> None:
        """Our own metric: Powertools writes its metric without the default dimensions, so that stacks could not be kept
        apart, and not at all for a failed invocation."""
        if self._is_cold:
            self._is_cold = False
            self.count("ColdStart", 1)

    def count(self, name: str, value: float) -> None:
        self.metrics.add_metric(name, MetricUnit.Count, value)

    def log_failure(self, text: str, error: Exception, facts: Facts = NO_FACTS, *, trace: bool = False) -> None:
        """One line with everything known. `key` is the subject of the message, `failed_key` the object of the failed
        request."""
        known = {"reason": str(error), "error": type(error).__name__, **facts}
        if isinstance(error, WormError):
            known |= {"failed_key": error.key, "s3_request_id": error.request_id}
        said = {name: fact for name, fact in known.items() if fact is not None}
        self.logger.error(text, exc_info=error if trace else None, extra=said)


@contextmanager
def _requests() -> Iterator[Mapping[str, int]]:
    with metered() as meter:
        yield meter.requests


class Function(Reporting, Generic[WorkerT]):
    """A function with a worker. The first invocation creates session and worker from the environment; they live as long
    as the process."""

    def __init__(self, make: Callable[[Session], WorkerT]) -> None:
        super().__init__()
        self._make = make

    @cached_property
    def session(self) -> Session:
        settings, clock = Settings.from_environment(), SystemClock()
        ids = Ids.system(clock)
        store = S3Store(settings.bucket, settings.prefix, role=settings.role, ids=ids, clock=clock)
        return Session(store, settings, ids=ids, clock=clock)

    @cached_property
    def worker(self) -> WorkerT:
        return self._make(self.session)

    def _measured(self) -> AbstractContextManager[Mapping[str, int]]:
        """Includes requests of the session's own threads."""
        return self.session.store.requests.measure()

    def log_problems(self, text: str, model: str, problems: Mapping[str, str]) -> None:
        """One line for each of the first reasons, by id or key."""
        for key, reason in islice(problems.items(), VALUES_SHOWN):
            self.logger.error(text, extra={"model": model, "key": key, "reason": reason})

    def run_scheduled(self, run: Callable[[], list[AnswerT]]) -> list[AnswerT] | None:
        """The reports of a scheduled run; None: no schema is pushed yet."""
        try:
            return run()
        except NotFound:
            if not self.session.is_new():
                raise
            self.logger.info(NO_SCHEMA)
            return None

    def run_batch(self, event: Event, run: Callable[[Sequence[Message]], BatchOutcome]) -> PartialBatchAnswer:
        """Run a worker on the records of an SQS event; see the module header."""
        messages = [_message(record) for record in event["Records"]]
        with self.session.store.requests.measure() as spent:
            outcome = self._outcome(messages, run)
        failed = outcome.failed.keys() | self._bury(messages, outcome)
        self._log_failed(messages, outcome)
        self._measure(messages, outcome)
        self._log_batch(messages, outcome, spent)
        if outcome.is_outage(messages):
            raise next(iter(outcome.failed.values()))
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in sorted(failed)]}

    def _outcome(self, messages: Sequence[Message], run: Callable[[Sequence[Message]], BatchOutcome]) -> BatchOutcome:
        try:
            return run(messages)
        except NotFound as missing:
            error: Exception = missing
            if self.session.is_new():
                self.logger.info(NO_SCHEMA)
                return BatchOutcome(ignored=len(messages))
        except Exception as failure:  # noqa: BLE001 - of all messages; logged and raised when it is counted
            error = failure
        outcome = BatchOutcome()
        outcome.fail((message.id for message in messages), error)
        return outcome

    @cached_property
    def _letters(self) -> DeadLetters | None:
        return DeadLetters.from_environment()

    def _bury(self, messages: Sequence[Message], outcome: BatchOutcome) -> set[str]:
        """Send the rejected ones to the DLQ; returns those that it did not accept."""
        bodies, kept = {message.id: message.body for message in messages}, set[str]()
        for message_id, reason in outcome.rejected.items():
            facts = self._facts(message_id, bodies[message_id], outcome)
            self.log_failure("rejected", reason, facts)
            try:
                if self._letters is None:
                    raise Unavailable(
                        "WORM_DLQ_URL is not set", hint="set it to the URL of the queue; template.yaml does"
                    )
                self._letters.send(bodies[message_id], str(reason))
            except Unavailable as error:
                self.log_failure("dead letter not sent", error, facts)
                kept.add(message_id)
        return kept

    def _log_failed(self, messages: Sequence[Message], outcome: BatchOutcome) -> None:
        """One line per message. If one error fails many of them, its trace is logged once."""
        traced: set[int] = set()
        for message in messages:
            error = outcome.failed.get(message.id)
            if error is not None:
                facts = self._facts(message.id, message.body, outcome)
                self.log_failure("failed", error, facts, trace=id(error) not in traced)
                traced.add(id(error))
            elif message.id not in outcome.rejected:
                self.logger.debug("done", message_id=message.id, key=self._key_of(message.body))

    def _facts(self, message_id: str, body: str, outcome: BatchOutcome) -> Facts:
        return {"message_id": message_id, "key": self._key_of(body), **outcome.facts.get(message_id, {})}

    def _key_of(self, body: str) -> str | None:
        """The first key in a message."""
        settings = self.session.settings
        with suppress(Invalid):  # not an event, so it has no key
            return next((hint.key for hint in hints_of(body, bucket=settings.bucket, prefix=settings.prefix)), None)
        return None

    def _measure(self, messages: Sequence[Message], outcome: BatchOutcome) -> None:
        self.count("Messages", len(messages))
        self.count("Recorded", outcome.recorded)
        self.count("Ignored", outcome.ignored)
        self.count("Rejected", len(outcome.rejected))
        self.count("Failed", len(outcome.failed))
        self.count("Attempts", outcome.attempts)
        self.count("UniqueConflicts", sum(map(len, outcome.conflicts.values())))
        if outcome.age_seconds is not None:
            self.metrics.add_metric("FreshnessSeconds", MetricUnit.Seconds, outcome.age_seconds)

    def _log_batch(self, messages: Sequence[Message], outcome: BatchOutcome, spent: Mapping[str, int]) -> None:
        for index, values in outcome.conflicts.items():
            self.logger.warning(
                "several documents have the same unique value", index=index, values=values[:VALUES_SHOWN]
            )
        for model, error in outcome.unpublished.items():
            self.log_failure("not published", error, {"model": model}, trace=True)
        self.logger.info(
            "batch",
            messages=len(messages),
            recorded=outcome.recorded,
            ignored=outcome.ignored,
            rejected=len(outcome.rejected),
            failed=len(outcome.failed),
            attempts=outcome.attempts,
            requests=spent,
        )


def _message(record: Mapping[str, Any]) -> Message:
    deliveries = record.get("attributes", {}).get("ApproximateReceiveCount", "1")
    return Message(record["messageId"], record["body"], int(deliveries))


def seconds_left(context: Any) -> Deadline:
    """The deadline of an invocation: the remaining time, minus the time for finishing."""

    def left() -> float:
        return float(context.get_remaining_time_in_millis()) / 1000 - SAFETY_SECONDS

    return left


REASON_CHARACTERS_MAX = 1000


class DeadLetters:
    """The DLQ of one worker, to send to; `upkeep/dead_letters.py` reads it. boto3 is imported at the first
    dead letter, not at startup: most batches never need it."""

    def __init__(self, queue_url: str) -> None:
        self._queue_url = queue_url

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> DeadLetters | None:
        """From WORM_DLQ_URL; None if it is not set."""
        url = (os.environ if environment is None else environment).get("WORM_DLQ_URL", "")
        return cls(url) if url else None

    @cached_property
    def _client(self) -> SQSClient:
        import boto3

        return boto3.client("sqs")

    def send(self, body: str, reason: str) -> None:
        """`Unavailable` if the queue did not accept it."""
        from botocore.exceptions import BotoCoreError, ClientError

        printable = "".join(character if character.isprintable() else " " for character in reason)
        text = printable[:REASON_CHARACTERS_MAX] or "unknown"
        try:
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=body,
                MessageAttributes={REASON_ATTRIBUTE: {"DataType": "String", "StringValue": text}},
            )
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"the dead-letter queue did not accept the message: {error}") from error
