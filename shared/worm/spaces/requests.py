"""Transactions that a process hands to the writer in another process, so that they need not take the log from each
other.

- A *request*, `requests/<box>.json`, is what one process wants to commit: transactions with their names. A process has
  one *box*, and overwrites its last request with the next. A request names its writer, and has a growing number.
- The *answers*, `answers.json`, come from the writer whose desk is open: the last answer to every box.
- A *desk* is the thread of a writer that knows about other processes. It polls for requests with one listing, commits
  the new ones with the next group, and then answers. If there are no requests, it polls less and less often, and
  closes. When its process ends, it names an *heir*: the process that becomes the next writer.

Correctness depends neither on clocks nor on these objects:
- An answer follows the commit. If a request or its answer is lost, the transaction is only late.
- A request counts only for one writer, and a number only once. So no other writer commits a refused transaction later.
- A process that gets no answer takes over the log. From the fence on, the other one commits nothing, and its earlier
  commits are found by their names. Until then, the outcome is unknown, and no caller learns that nothing was written.
Everything else (who is alive, how long to wait) only affects the cost.

It knows nothing about rows: `page_backend.py` says who the writer is, and what to
decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from worm import forks
from worm.clock import Clock, Ids
from worm.errors import CommitStateUnknown, Corrupt, Denied, Fenced, Unavailable, WormError
from worm.formats import JsonObject, JsonValue, dumps, loads_own
from worm.log import DbKeys
from worm.store import NotModified, Read, Store

FORMAT = 1
EVERY_SECONDS, WORK_SHARE = 0.1, 2
"""How often a desk polls, and the maximum share of its time that it spends on requests."""
IDLE_PAUSE, IDLE_SECONDS = 0.4, 2.0
"""Without requests, it polls less often, up to this pause, and closes after this time."""
BEGIN_SECONDS = 0.02
"""A process that ends at once opens no desk."""
PATIENCE_SECONDS = 1.5
"""A process that gets no answer for this long takes over."""
HEIR_SECONDS, HEIR_PAUSE = 1.5, 0.3
"""How long the others wait for the heir of a closed desk, and how often they check."""
LOOK_SECONDS = 0.1
"""The minimum interval between two reads of the answers."""
HEARD_SECONDS = 1.0
"""A writer that answered this recently gets the next request without a check of its answers."""
ALERT_SECONDS = 5.0
"""For this long after another writer was seen, its answers are checked before its turn is taken."""
REQUEST_BYTES_MAX = 1024 * 1024
"""Larger transactions are not worth sending twice."""
KEPT_SECONDS = 60.0
FORGOTTEN = timedelta(hours=1)
"""Requests of killed processes are removed after this time."""


class DeskOpen(Fenced):
    """Another process accepts requests: hand over the transaction."""

    explained_as = "Fenced"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a writer. `every`: how often it polls for requests, in seconds. `heir`: the box of the next
    writer."""

    epoch: int
    writer: str
    is_open: bool
    every: float
    heir: str = ""
    answers: Mapping[str, JsonObject] = field(default_factory=dict)

    def encode(self) -> bytes:
        return dumps(
            {
                "format": FORMAT,
                "epoch": self.epoch,
                "writer": self.writer,
                "open": self.is_open,
                "every": self.every,
                "heir": self.heir,
                "answers": dict(self.answers),
            }
        )

    @classmethod
    def decode(cls, body: bytes, key: str) -> Answers:
        shape = loads_own(body, key)
        epoch, every, answers = shape.get("epoch"), shape.get("every"), shape.get("answers")
        if shape.get("format") != FORMAT or type(epoch) is not int or type(every) not in (int, float):
            raise Corrupt("this object does not hold a writer's answers", key=key)
        boxes = answers if isinstance(answers, dict) else {}
        found = {box: one for box, one in boxes.items() if isinstance(one, dict)}
        seconds = min(max(float(str(every)), LOOK_SECONDS), PATIENCE_SECONDS / 2)
        is_open = shape.get("open") is True
        return cls(epoch, str(shape.get("writer", "")), is_open, seconds, str(shape.get("heir", "")), found)


@dataclass(frozen=True, slots=True)
class _Request:
    """Transactions that one process wants the writer `to` to commit."""

    to: str
    number: int
    transactions: Sequence[JsonObject]

    def encode(self) -> bytes:
        listed: list[JsonValue] = list(self.transactions)
        return dumps({"format": FORMAT, "to": self.to, "number": self.number, "transactions": listed})

    @classmethod
    def decode(cls, body: bytes, key: str) -> _Request:
        shape = loads_own(body, key)
        number, listed = shape.get("number"), shape.get("transactions")
        if shape.get("format") != FORMAT or type(number) is not int or not isinstance(listed, list):
            raise Corrupt("this object is not a process's request", key=key)
        return cls(str(shape.get("to", "")), number, [one for one in listed if isinstance(one, dict)])


@dataclass(slots=True)
class Asked:
    """A transaction with a waiting caller. `outcome` is the writer's answer. Without one, it has to be decided in its
    own turn; `is_sent`: until that turn begins, the other process may still decide it."""

    transaction: JsonObject
    outcome: JsonObject | None = None
    is_sent: bool = False
    is_done: bool = False


class Asking:
    """Hands the transactions of one process to the current writer. Thread-safe: transactions that arrive while a
    request is in progress go into the next one."""

    def __init__(self, store: Store, keys: DbKeys, *, clock: Clock, ids: Ids) -> None:
        self._store, self._keys = store, keys
        self._clock, self._ids = clock, ids
        self._queued, self._sending = forks.new_lock(), forks.new_lock()
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        """Starts with its own box; a forked child gets another."""
        self.box = self._ids.ulid()
        self._number = 0
        self._queue: list[Asked] = []
        self._answers: Answers | None = None
        self._etag: str | None = None
        self._looked = self._heard = self._alerted = float("-inf")
        self._dead = ""
        self._waited = 0
        self._is_denied = False

    def alert(self) -> None:
        """Another process writes, too."""
        self._alerted = self._clock.monotonic()

    @property
    def is_alert(self) -> bool:
        """Whether another writer was seen recently."""
        return self._clock.monotonic() - max(self._heard, self._alerted) <= ALERT_SECONDS

    def ask(self, transaction: JsonObject) -> Asked:
        """Hand it over, if there is a writer, and wait."""
        mine = Asked(transaction)
        with self._queued:
            self._queue.append(mine)
        with self._sending:
            if not mine.is_done:
                with self._queued:
                    batch, self._queue = self._queue, []
                try:
                    self._hand_over(batch)
                finally:
                    for one in batch:
                        one.is_done = True
        return mine

    def open_desk(self) -> Answers | None:
        """The desk of the current writer, after a conditional GET, unless there was one just now."""
        is_fresh = self._clock.monotonic() - self._looked < LOOK_SECONDS / 2
        answers = self._answers if is_fresh else self._look()
        return answers if answers is not None and answers.is_open and answers.writer != self._dead else None

    def close(self) -> None:
        if self._number:
            with suppress(WormError):  # a desk removes it, later
                self._store.delete(self._keys.request(self.box))

    def _hand_over(self, batch: Sequence[Asked]) -> None:
        to = self._whom()
        while to is not None:
            answered = self._send(batch, to)
            if isinstance(answered, list):
                for one, outcome in zip(batch, answered, strict=True):
                    one.outcome = outcome
                self.alert()
                return
            to = answered

    def _whom(self) -> Answers | None:
        if self._is_denied or not self.is_alert:
            return None
        is_fresh = self._clock.monotonic() - self._looked <= HEARD_SECONDS
        known = self._answers if is_fresh else self._look()
        if known is None or known.writer == self._dead:
            return None
        return self._next(known)

    def _send(self, batch: Sequence[Asked], to: Answers) -> list[JsonObject] | Answers | None:
        """The outcomes, or another writer to ask instead; None if there is none."""
        self._number += 1
        request = _Request(to.writer, self._number, [one.transaction for one in batch])
        for one in batch:
            one.is_sent = True
        try:
            self._store.put(self._keys.request(self.box), request.encode())
            return self._answered(batch, to)
        except Denied:  # nothing was sent now, and an earlier request is for a writer that is gone
            self._is_denied = True
            return None
        except Unavailable as error:
            raise CommitStateUnknown(
                f"the outcome of a transaction that was handed to another writer is unknown ({error.message})",
                key=self._keys.request(self.box),
                hint="repeat it with the same session_id and local_seq",
            ) from error

    def _answered(self, batch: Sequence[Asked], to: Answers) -> list[JsonObject] | Answers | None:
        sent = self._clock.monotonic()
        patience = PATIENCE_SECONDS + self._ids.jitter(PATIENCE_SECONDS / 2)  # not all take over at once
        pause = max(to.every / 4, self._looked + to.every - sent)
        while True:
            self._clock.sleep(pause)
            found = self._look()
            if found is not None and found.writer == to.writer:
                outcomes = _outcomes(found.answers.get(self.box), self._number, len(batch))
                if outcomes is not None:
                    self._heard = self._looked
                    return outcomes
            if found is not None and found.epoch >= to.epoch and not (found.writer == to.writer and found.is_open):
                return self._next(found)
            if self._looked - sent >= patience:
                self._dead = to.writer
                return None
            pause = to.every if found is None else found.every

    def _next(self, left: Answers) -> Answers | None:
        """The writer that accepts requests, now that this one does not."""
        if left.is_open:
            return left
        if left.heir in ("", self.box) or left.epoch <= self._waited:
            return None
        self._waited = left.epoch
        until = self._clock.monotonic() + HEIR_SECONDS + self._ids.jitter(HEIR_SECONDS)
        while self._clock.monotonic() < until:
            self._clock.sleep(HEIR_PAUSE)
            found = self._look()
            if found is not None and found.epoch > left.epoch:
                return found if found.is_open else None
        return None

    def _look(self) -> Answers | None:
        try:
            found = self._store.get_if_changed(self._keys.answers, self._etag)
        except Denied:
            self._is_denied, found = True, None
        self._looked = self._clock.monotonic()
        if isinstance(found, NotModified):
            return self._answers
        self._etag, self._answers = None, None
        if found is not None:
            with suppress(Corrupt):  # the next answers replace them
                self._etag, self._answers = found.etag, Answers.decode(found.body, found.key)
        return self._answers


def _outcomes(answer: JsonObject | None, number: int, count: int) -> list[JsonObject] | None:
    """The outcomes of the request with this number."""
    if answer is None or answer.get("number") != number:
        return None
    listed = answer.get("outcomes")
    outcomes = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return outcomes if len(outcomes) == count else None


Decide = Callable[[Sequence[JsonObject]], list[JsonObject]]
"""Commits transactions together, and returns their outcomes once they are durable. An error ends the desk."""


class Desk:
    """Accepts the requests of others for one writer, in a thread."""

    def __init__(self, store: Store, keys: DbKeys, writer: str, epoch: int, decide: Decide, clock: Clock) -> None:
        self._store, self._keys, self._clock = store, keys, clock
        self._writer, self._epoch, self._decide = writer, epoch, decide
        self._every = EVERY_SECONDS
        self._etags: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._answers: dict[str, JsonObject] = {}
        self._is_said = False
        self._is_open = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worm-desk", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop answering: another process is the writer now."""
        self._ended.set()

    def finish(self) -> None:
        """Answer the requests in progress. Called before its writer is closed."""
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        """Name the heir, once its writer is properly closed."""
        if self._is_open:
            with suppress(WormError):  # waiting processes find out by themselves
                self._say(is_open=False)

    def _run(self) -> None:
        pause, asked = BEGIN_SECONDS, self._clock.monotonic()
        while not self._ended.wait(pause):
            began = self._clock.monotonic()
            try:
                is_asked = self._work()
            except (Fenced, CommitStateUnknown):
                self._is_open = False
                return
            except WormError:
                is_asked = False
            now = self._clock.monotonic()
            took = now - began
            if is_asked:
                asked = now
                self._every = max(EVERY_SECONDS, WORK_SHARE * took)
            elif now - asked >= IDLE_SECONDS:
                self._retire()
                return
            pause = max(0.0, self._every - took) if is_asked else min(max(2 * pause, EVERY_SECONDS), IDLE_PAUSE)

    def _retire(self) -> None:
        with suppress(WormError):
            self._say(is_open=False)
        self._is_open = False

    def _work(self) -> bool:
        """Whether there was a request."""
        if not self._is_open:
            self._is_open = True
            self._say(is_open=True)
        asked = self._new_requests()
        if asked:
            outcomes = iter(self._decide([one for request in asked.values() for one in request.transactions]))
            now = self._clock.monotonic()
            for box, request in asked.items():
                own: list[JsonValue] = [next(outcomes) for _ in request.transactions]
                self._answers[box], self._asked[box] = {"number": request.number, "outcomes": own}, now
                self._is_said = False
        if not self._is_said:
            self._say(is_open=True)
        return bool(asked)

    def _new_requests(self) -> dict[str, _Request]:
        """The new requests for this writer, by box. One listing, and one GET for each that changed."""
        listed = list(self._store.list(self._keys.requests))
        if not self._etags:
            self._remove_forgotten([one.key for one in listed if self._clock.now() - one.last_modified > FORGOTTEN])
        changed = [one.key for one in listed if self._etags.get(one.key) != one.etag]
        asked: dict[str, _Request] = {}
        for key, item in zip(changed, self._store.get_many([Read(key) for key in changed]), strict=True):
            if item is None or isinstance(item, Exception):
                continue
            self._etags[key] = item.etag
            box = self._keys.box_of(key)
            with suppress(Corrupt):  # nobody waits for an answer to that
                request = _Request.decode(item.body, key)
                if request.to == self._writer and request.number > self._numbers.get(box, 0):
                    self._numbers[box] = request.number
                    asked[box] = request
        return asked

    def _remove_forgotten(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.delete(key)

    def _say(self, *, is_open: bool) -> None:
        now = self._clock.monotonic()
        self._answers = {box: one for box, one in self._answers.items() if now - self._asked[box] < KEPT_SECONDS}
        lately = [box for box in self._answers if now - self._asked[box] < HEARD_SECONDS]
        heir = "" if is_open else max(lately, key=self._asked.__getitem__, default="")
        said = Answers(self._epoch, self._writer, is_open, round(self._every, 3), heir, self._answers)
        self._store.put(self._keys.answers, said.encode())
        self._is_said = True
