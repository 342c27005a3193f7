"""`Idempotency-Key`: a caller can repeat a call safely if it does not know whether the first one arrived.

The first call with a key stores a record under `.worm.api/idempotency/`, with put-if-absent, before it does anything,
and adds the answer afterward. A later call of the same caller with the same key and content gets that answer. With
different content it is refused. While the first call runs, others get 409. If it never ended (its process was killed),
its outcome is unknown, and the answer says so.

An answer that decided nothing (the store is unreachable) is not kept: the caller can try again with the same key.
Records are valid for 24 hours. After that a lifecycle rule of the bucket, or `worm prune`, removes them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

from worm.api.call import Call, HttpAnswer
from worm.api.problems import HttpProblem
from worm.clock import iso_millis
from worm.collections import layout
from worm.errors import Corrupt, Denied, Unavailable
from worm.formats import JsonObject, dumps, loads_own
from worm.store import Lost, Store, Won
from worm.values import dataclass

KEPT = timedelta(hours=24)
AT_WORK = timedelta(seconds=90)
"""Longer than any call may take."""
KEY_CHARACTERS_MAX = 255
RETRY_SECONDS = "2"
REPLAYED = {"Idempotency-Replayed": "true"}


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The first call with a key. `answer` is None until it has ended."""

    content: str
    started_at: str
    answer: JsonObject | None = None

    def shape(self) -> JsonObject:
        return {"version": 1, "content": self.content, "startedAt": self.started_at, "answer": self.answer}

    @classmethod
    def read(cls, body: bytes, key: str) -> CallRecord:
        shape = loads_own(body, key)
        content, started, answer = shape.get("content"), shape.get("startedAt"), shape.get("answer")
        if not isinstance(content, str) or not isinstance(started, str) or not isinstance(answer, dict | None):
            raise Corrupt("this is not the record of a call", key=key, hint="you can delete it")
        return cls(content, started, answer)

    def age(self, now: datetime) -> timedelta:
        return now - datetime.fromisoformat(self.started_at)


def answered_once(call: Call, work: Callable[[], HttpAnswer]) -> HttpAnswer:
    """The answer of the work, or its first answer. Without a key, the work simply runs."""
    name = call.header("idempotency-key")
    if name is None:
        return work()
    if not 1 <= len(name) <= KEY_CHARACTERS_MAX or not name.isascii() or not name.isprintable():
        hint = "use a random value for each call, such as a UUID"
        what = f"Idempotency-Key must have 1 to {KEY_CHARACTERS_MAX} printable ASCII characters"
        raise HttpProblem(400, "malformed-header", what, hint=hint)
    key = f"{layout.ANSWERS_PREFIX}{_digest(call.identity.actor, name)}.json"
    store, now = call.session.store, call.session.clock.now()
    record = CallRecord(_content(call), iso_millis(now))
    call.session.ensure_safe_store()
    begun = store.put_if_absent(key, dumps(record.shape()))
    if isinstance(begun, Lost):
        known = CallRecord.read(begun.current.body, key)
        if known.age(now) < KEPT:
            return _known_answer(known, record, now)
        taken = store.put_if_match(key, dumps(record.shape()), begun.current.etag)
        if not isinstance(taken, Won):
            raise _at_work()
        begun = taken
    return _worked(store, key, record, begun.etag, work)


def _worked(store: Store, key: str, record: CallRecord, etag: str, work: Callable[[], HttpAnswer]) -> HttpAnswer:
    """If the process is killed now, the record stays and shows that the outcome is unknown."""
    answer = work()
    if _is_undecided(answer):
        with suppress(Denied, Unavailable):  # as below: the record says "at work" for a while
            store.delete(key)
        return answer
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    kept: JsonObject = {
        "status": answer.status,
        "headers": dict(answer.headers),
        "body": base64.b64encode(body).decode(),
    }
    done = CallRecord(record.content, record.started_at, kept)
    with suppress(Denied, Unavailable):  # the record then says that the call is running, which is safe
        store.put_if_match(key, dumps(done.shape()), etag)
    return answer


def _is_undecided(answer: HttpAnswer) -> bool:
    """May the same call be repeated as if it had never arrived?"""
    return answer.status >= 500 and "Retry-After" in answer.headers


def _known_answer(known: CallRecord, record: CallRecord, now: datetime) -> HttpAnswer:
    if known.content != record.content:
        what = "this Idempotency-Key was used for another call"
        raise HttpProblem(422, "idempotency-key-reused", what, hint="use a new key for each call")
    if known.answer is not None:
        answer = known.answer
        headers = {**cast("dict[str, str]", answer["headers"]), **REPLAYED}
        return HttpAnswer(cast(int, answer["status"]), headers, base64.b64decode(cast(str, answer["body"])))
    if known.age(now) < AT_WORK:
        raise _at_work()
    what = "the first call with this Idempotency-Key did not end, and its change may be stored"
    hint = "check whether it is; if not, call again with a new key"
    raise HttpProblem(409, "idempotency-key-abandoned", what, hint=hint, mayHaveLanded=True)


def _at_work() -> HttpProblem:
    what = "the first call with this Idempotency-Key is still running"
    return HttpProblem(409, "idempotency-key-in-use", what, headers={"Retry-After": RETRY_SECONDS})


def _content(call: Call) -> str:
    """The parts that make two calls equal."""
    conditions = (call.header("if-match"), call.header("if-none-match"), call.reason)
    return _digest(call.method, call.path, repr(call.query.pairs), call.media_type, repr(conditions), call.body)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()
