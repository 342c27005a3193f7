"""Plain transactions on a backend that many processes share: handed to the current writer, or decided in a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from worm.errors import CommitStateUnknown, Invalid, WormError
from worm.formats import JsonObject, JsonValue, loads_own
from worm.spaces.backend import Backend, Handing, Turn
from worm.spaces.operations import ConfirmedRead, PendingRead, Read, SpaceConfig
from worm.spaces.requests import REQUEST_BYTES_MAX, DeskOpen
from worm.spaces.results import Committed
from worm.spaces.rows import CommitRow
from worm.spaces.transacting import Author, Committer, TransactionRequest

_OWN = frozenset(("localSeq", "operations", "reads"))


class HandedCommits:
    """Commits transactions of this process through others, and those of others in this one."""

    def __init__(self, committer: Committer, backend: Handing) -> None:
        self._committer = committer
        self._backend = backend
        self.is_writer = backend.is_writer
        backend.serve(self._decide)

    def commit(self, request: TransactionRequest) -> Committed:
        if len(request.original) > REQUEST_BYTES_MAX:
            return self._committer.commit(request)
        transaction = transaction_of(request)
        asked = self._backend.ask(transaction)
        if asked.outcome is None:
            try:
                with self._settling() if asked.is_sent else self._backend.polite_turn() as turn:
                    decided = self._committer.decide(turn, request)
                return self._committer.finish(decided)
            except DeskOpen:
                asked = self._backend.ask(transaction)
                if asked.outcome is None:
                    raise
        return _committed(request, asked.outcome) or self._refused(request)

    @contextmanager
    def _settling(self) -> Iterator[Turn]:
        """A turn after an unanswered request: until it begins, the other process may still commit it."""
        is_ours = False
        try:
            with self._backend.polite_turn() as turn:
                is_ours = True
                yield turn
        except WormError as error:
            if is_ours or isinstance(error, DeskOpen):
                raise
            raise CommitStateUnknown(
                f"a transaction was handed to another writer, which did not answer ({error.message})",
                key=error.key,
                hint="repeat it with the same session_id and local_seq",
            ) from error

    def _refused(self, request: TransactionRequest) -> Committed:
        """The other process refused it. The log says why; if it no longer does, the transaction is decided again."""
        decided = self._committer.decide(self._backend.fresh_turn(), request)
        return self._committer.commit(request) if decided.states else self._committer.finish(decided)

    def _decide(self, turn: Turn, transaction: JsonObject) -> Callable[[], JsonObject]:
        """A transaction of another process."""
        decided = self._committer.decide(turn, request_of(transaction, self._committer.config))

        def outcome() -> JsonObject:
            done = self._committer.finish(decided)
            row = decided.row
            return {"seq": row.seq, "at": row.created_at, "resolution": row.resolution, "repeat": done.is_repeat}

        return outcome


def handed_commits(committer: Committer, backend: Backend) -> HandedCommits | None:
    """None if its transactions cannot be handed over."""
    return HandedCommits(committer, cast(Handing, backend)) if issubclass(type(backend), Handing) else None


def transaction_of(request: TransactionRequest) -> JsonObject:
    """The transaction as a request has it."""
    record = loads_own(request.original.encode(), "a transaction")
    return {"session": request.author.session_id, "branch": request.branch, "record": record}


def request_of(transaction: JsonObject, config: SpaceConfig) -> TransactionRequest:
    """The checked transaction, like one of this process; otherwise `Invalid`."""
    record = transaction.get("record")
    if not isinstance(record, dict):
        raise Invalid("a transaction needs its record")
    author = Author.checked(transaction.get("session"), record.get("localSeq"))
    operations, reads = record.get("operations"), record.get("reads")
    if not isinstance(operations, list) or not isinstance(reads, dict):
        raise Invalid("a transaction needs operations and reads")
    ops = [one for one in operations if isinstance(one, dict)]
    extra = {name: value for name, value in record.items() if name not in _OWN}
    branch = str(transaction.get("branch"))
    return TransactionRequest.checked(author, branch, ops, _reads(reads), config, extra or None)


def _reads(shape: JsonObject) -> list[Read]:
    confirmed, pending = _objects(shape.get("confirmed")), _objects(shape.get("pending"))
    try:
        return [
            *(ConfirmedRead(str(one["id"]), _int(one["seq"]), _branch(one.get("branch"))) for one in confirmed),
            *(PendingRead(str(one["id"]), _int(one["localSeq"])) for one in pending),
        ]
    except KeyError as error:
        raise Invalid(f"a read needs {error}") from error


def _objects(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _int(value: JsonValue) -> int:
    if type(value) is not int:
        raise Invalid("a read needs a number")
    return value


def _branch(value: JsonValue) -> str | None:
    return None if value is None else str(value)


def _committed(request: TransactionRequest, outcome: JsonObject) -> Committed | None:
    """None if it was refused."""
    seq, at, resolution = outcome.get("seq"), outcome.get("at"), outcome.get("resolution")
    if type(seq) is not int or not isinstance(at, str) or not isinstance(resolution, str):
        return None
    author = request.author
    row = CommitRow(seq, request.branch, author.session_id, author.local_seq, request.original, resolution, at)
    return Committed.of(row, is_repeat=outcome.get("repeat") is True)
