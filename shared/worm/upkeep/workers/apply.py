"""apply: takes events about log segments; writes delta layers of page stores, and documents of models in spaces.

Per batch: group the segments by log, and apply each log once, to its end, whatever its messages name. A flush begins
where the last one ended, according to the root, and is published by one compare-and-swap; so messages may be
duplicated, late, out of order, and go to several workers at once. A message is done when the root says that its segment
is applied.

For documents in a space, the log is the source of truth (`spaces/bridge/following.py`). They are brought to its end
whatever the root says: the process that flushed may have died before that, or be a writer that does not handle
documents.

Messages about logs of databases without pages, and of deleted branches, are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.clock import Deadline
from worm.errors import Corrupt, Invalid, NotFound, Unavailable
from worm.log import DbKeys, hints
from worm.pages import Applier
from worm.upkeep.materialize import Materializer
from worm.upkeep.session import Session
from worm.upkeep.workers.batch import BatchOutcome, Message, hints_of

FLUSH_SECONDS = 20.0
"""A flush cannot be stopped halfway, so none is started with less time than this."""
# Roots remembered between batches; forgetting one costs a whole GET instead of a conditional one.
REMEMBERED_MAX = 32


@dataclass
class _Log:
    """The segments of one log in a batch, by slot, each with its messages."""

    keys: DbKeys
    slots: dict[int, set[str]] = field(default_factory=dict)

    def messages(self, after: int = 0) -> set[str]:
        """The messages of the slots after this one."""
        return {message for slot, messages in self.slots.items() if slot > after for message in messages}

    def fail(self, outcome: BatchOutcome, error: Exception, after: int = 0) -> None:
        for slot in (one for one in self.slots if one > after):
            outcome.fail(self.slots[slot], error, key=self.keys.slot(slot), database=self.keys.db_id)


class Apply:
    """The apply worker."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._appliers: dict[str, Applier] = {}
        self._materializer = Materializer(session)

    def run(self, messages: Sequence[Message], left: Deadline) -> BatchOutcome:
        """Apply the logs that a batch of SQS messages names, until time runs out; the rest fails."""
        outcome = BatchOutcome()
        for log in self._group(messages, outcome):
            try:
                if self._apply(log, left, outcome):
                    self._materialize(log, left, outcome)
            except Exception as error:  # noqa: BLE001 - reported for its messages, which the queue delivers again
                log.fail(outcome, error)
        return outcome

    def _group(self, messages: Sequence[Message], outcome: BatchOutcome) -> list[_Log]:
        settings, logs = self._session.settings, dict[DbKeys, _Log]()
        for message in messages:
            try:
                told = hints_of(message.body, bucket=settings.bucket, prefix=settings.prefix)
            except Invalid as mistake:
                outcome.reject(message.id, mistake)
                continue
            found = [segment for hint in told if (segment := DbKeys.of_segment(hint.key)) is not None]
            outcome.ignored += len(told) - len(found) + (not told)
            for keys, slot in found:
                logs.setdefault(keys, _Log(keys)).slots.setdefault(slot, set()).add(message.id)
        return list(logs.values())

    def _apply(self, log: _Log, left: Deadline, outcome: BatchOutcome) -> bool:
        """Apply to pages. False: there are none."""
        if left() < FLUSH_SECONDS:
            raise _no_time(log.keys)
        applier = self._applier(log.keys.db_id)
        found = applier.root.branch_of(log.keys)
        if found is None or not log.messages(after=found[1]):
            outcome.ignored += len(log.slots)
            return found is not None
        try:
            done = applier.run(found[0], left=lambda: left() - FLUSH_SECONDS)
        except NotFound:
            if applier.root.branch_of(log.keys) is not None:
                raise
            outcome.ignored += len(log.slots)  # deleted in the meantime
            return False
        outcome.recorded += done.segments
        outcome.attempts += done.flushes
        if not done.is_done:
            log.fail(outcome, _no_time(log.keys), after=done.slot)
        else:
            self._check_rest(log, done.slot, applier, outcome)
        return True

    def _materialize(self, log: _Log, left: Deadline, outcome: BatchOutcome) -> None:
        """Apply to documents. Branches have none."""
        if log.keys.branch:
            return
        if not self._materializer.run(log.keys.db_id, lambda: left() - FLUSH_SECONDS).is_done:
            log.fail(outcome, _no_time(log.keys))

    def _check_rest(self, log: _Log, end: int, applier: Applier, outcome: BatchOutcome) -> None:
        """The log was read to its end without some of these segments: do they exist?"""
        for slot in sorted(slot for slot in log.slots if slot > end):
            key = log.keys.slot(slot)
            if self._session.store.head(key) is None or applier.root.branch_of(log.keys) is None:
                outcome.ignored += 1
                continue
            what = f"the log ends at slot {end}: segments before this one are missing"
            outcome.fail(log.slots[slot], Corrupt(what, key=key, hint=hints.VERIFY), key=key, database=log.keys.db_id)

    def _applier(self, db_id: str) -> Applier:
        applier = self._appliers.pop(db_id, None)
        if applier is None:
            applier = Applier(self._session.store, db_id, clock=self._session.clock, ids=self._session.ids)
        self._appliers[db_id] = applier
        for forgotten in list(self._appliers)[:-REMEMBERED_MAX]:
            del self._appliers[forgotten]
        return applier


def _no_time(keys: DbKeys) -> Unavailable:
    return Unavailable("time ran out before it was applied", key=keys.log, hint="the queue will deliver it again")
