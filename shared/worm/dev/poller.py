"""The event source mapping: from a queue to its function, as in Lambda.

One thread receives (ten at a time, until the batch is full or its window is over), up to `concurrency_max` invocations
run at once. What the function reports as failed, or everything when it fails as a whole or answers in a wrong shape,
stays in the queue; its visibility is shortened to `retry_seconds`, which production leaves at the queue's own timeout,
so that a redrive to the dead-letter queue takes seconds here instead of an hour.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from worm.dev.provision import MadeQueue
from worm.dev.runtime import FunctionPool
from worm.dev.specs import EventSourceSpec
from worm.dev.worker import Outcome, OutcomeKind

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

RECEIVE_MAX = 10
LONG_POLL_SECONDS = 1
BATCH_BYTES_MAX = 5_000_000  # Lambda accepts 6 MB; ten more messages must still fit
_log = logging.getLogger("worm.dev")


class Poller:
    """Feeds one function from one queue until stopped."""

    def __init__(
        self,
        source: EventSourceSpec,
        queue: MadeQueue,
        pool: FunctionPool,
        sqs: SQSClient,
        region: str,
        *,
        window_seconds: float | None = None,
        retry_seconds: int = 1,
    ) -> None:
        self._source = source
        self._queue = queue
        self._pool = pool
        self._sqs = sqs
        self._region = region
        self._window_seconds = source.window_seconds if window_seconds is None else window_seconds
        self._retry_seconds = retry_seconds
        self._stopping = threading.Event()
        self._slots = threading.Semaphore(pool.concurrency_max)
        self._executor = ThreadPoolExecutor(pool.concurrency_max, thread_name_prefix=f"invoke-{source.function}")
        self._lock = threading.Lock()
        self._batches = 0
        self._thread = threading.Thread(target=self._loop, name=f"poll-{source.function}", daemon=True)

    @property
    def batches(self) -> int:
        """Batches taken from the queue and not finished yet."""
        with self._lock:
            return self._batches

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        """Returns when no thread of this poller runs; close the pool before."""
        if self._thread.is_alive():
            self._thread.join()
        self._executor.shutdown(wait=True)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            if not self._slots.acquire(timeout=0.2):
                continue
            batch: list[MessageTypeDef] = []
            try:
                batch = self._collect()
            except (BotoCoreError, ClientError) as error:
                if not self._stopping.is_set():
                    _log.warning("queue of %s cannot be read: %s", self._source.function, error)
                    self._stopping.wait(1.0)
            if not batch or self._stopping.is_set():
                self._slots.release()
                continue
            with self._lock:
                self._batches += 1
            self._executor.submit(self._handle, batch)

    def _collect(self) -> list[MessageTypeDef]:
        batch: list[MessageTypeDef] = []
        size = 0
        deadline = 0.0
        while not self._stopping.is_set():
            left = self._source.batch_size - len(batch)
            if left <= 0 or size > BATCH_BYTES_MAX:
                break
            if batch and time.monotonic() >= deadline and not _full(batch):
                break
            messages = self._receive(min(left, RECEIVE_MAX), 0 if batch else LONG_POLL_SECONDS)
            if messages and not batch:
                deadline = time.monotonic() + self._window_seconds
            batch += messages
            size += sum(len(message["Body"]) for message in messages)
            if not messages:
                if not batch or time.monotonic() >= deadline:
                    break
                self._stopping.wait(min(0.05, max(0.0, deadline - time.monotonic())))
        return batch

    def _receive(self, count: int, wait_seconds: int) -> list[MessageTypeDef]:
        answer = self._sqs.receive_message(
            QueueUrl=self._queue.url,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=wait_seconds,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return answer.get("Messages", [])

    def _handle(self, batch: list[MessageTypeDef]) -> None:
        try:
            outcome = self._pool.invoke({"Records": [self._record(message) for message in batch]})
            if self._stopping.is_set():
                return
            if outcome.kind is not OutcomeKind.OK:
                _log.warning("%s failed (%s): %s", self._source.function, outcome.kind.value, outcome.error)
            ids = [message["MessageId"] for message in batch]
            failed = failed_ids(outcome, ids, partial=self._source.report_batch_item_failures)
            self._settle(batch, failed)
        except (BotoCoreError, ClientError, RuntimeError) as error:
            # The messages stay in flight and return after the queue's visibility timeout.
            if not self._stopping.is_set():
                _log.warning("a batch of %s could not be settled: %s", self._source.function, error)
        finally:
            with self._lock:
                self._batches -= 1
            self._slots.release()

    def _settle(self, batch: Sequence[MessageTypeDef], failed: frozenset[str]) -> None:
        done = [message["ReceiptHandle"] for message in batch if message["MessageId"] not in failed]
        again = [message["ReceiptHandle"] for message in batch if message["MessageId"] in failed]
        for handles in _tens(done):
            entries = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
            # The stubs want one TypedDict of entries; what is built above is of that shape.
            self._sqs.delete_message_batch(QueueUrl=self._queue.url, Entries=entries)  # type: ignore[arg-type]
        for handles in _tens(again):
            retry = [
                {"Id": str(i), "ReceiptHandle": handle, "VisibilityTimeout": self._retry_seconds}
                for i, handle in enumerate(handles)
            ]
            self._sqs.change_message_visibility_batch(QueueUrl=self._queue.url, Entries=retry)  # type: ignore[arg-type]
        self._pool.add_records(ok=len(done), failed=len(again))

    def _record(self, message: MessageTypeDef) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {},
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self._queue.arn,
            "awsRegion": self._region,
        }


def failed_ids(outcome: Outcome, ids: Sequence[str], *, partial: bool) -> frozenset[str]:
    """Which messages of the batch failed, by Lambda's rules for partial batch responses."""
    everything = frozenset(ids)
    if outcome.kind is not OutcomeKind.OK:
        return everything
    if not partial or outcome.value is None:
        return frozenset()
    if not isinstance(outcome.value, Mapping):
        return everything
    failures = outcome.value.get("batchItemFailures")
    if failures is None:
        return frozenset()
    if not isinstance(failures, list):
        return everything
    named = [item.get("itemIdentifier") if isinstance(item, Mapping) else None for item in failures]
    known = [name for name in named if isinstance(name, str) and name in everything]
    return frozenset(known) if len(known) == len(named) else everything


def _full(batch: Sequence[object]) -> bool:
    """Whether the last receive was full: then more messages are waiting, and the batch continues."""
    return len(batch) % RECEIVE_MAX == 0


def _tens(handles: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(handles), RECEIVE_MAX):
        yield handles[start : start + RECEIVE_MAX]
