"""Messages of a queue batch and what became of each.

Three endings: done, *failed* (something may be better next time: the queue delivers again, and after maxReceiveCount it
goes to the DLQ), and *rejected* (it can never succeed: to the DLQ at once, with the reason).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from worm.errors import Invalid


@dataclass(frozen=True, slots=True)
class Message:
    """One SQS message."""

    id: str
    body: str
    deliveries: int = 1
    """How often the queue has delivered it; more than once means that something of it may be unfinished."""


@dataclass
class BatchOutcome:
    """What a batch came to. A message in neither dict is done.

    `attempts`: compare-and-swaps that were tried; more than one per file means that others wrote at the same moment.
    `conflicts`: by index, the values of unique fields that several documents have.
    """

    failed: dict[str, Exception] = field(default_factory=dict)
    rejected: dict[str, Invalid] = field(default_factory=dict)
    recorded: int = 0
    ignored: int = 0
    attempts: int = 0
    conflicts: dict[str, list[str]] = field(default_factory=dict)

    def fail(self, messages: Iterable[str], error: Exception) -> None:
        for message in messages:
            self.failed[message] = error

    def reject(self, message: str, reason: Invalid) -> None:
        self.rejected[message] = reason

    def reject_all(self, messages: Iterable[str], reason: Invalid) -> None:
        for message in messages:
            self.reject(message, reason)
