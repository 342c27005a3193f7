"""`worm.open_log`: opens the commit log of a database by its URL and name, for reading and writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Self

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, Position, check_json
from worm.log.common import check_name
from worm.log.config import LogConfig
from worm.log.fence import LogFiles
from worm.log.keys import DbKeys
from worm.log.reader import POLL_SECONDS, FeedRecord, LogReader
from worm.log.retries import NamedCommit, Retries
from worm.log.segment import LogTransaction
from worm.log.writer import LogWriter
from worm.store import Store, ensure_safe_once, open_store

OTHER_ROOMS = frozenset(("page", "space"))
"""Ops of page stores and spaces: in a log of records, nobody would read them as what they are."""


def open_log(
    url: str,
    name: str,
    *,
    config: LogConfig | None = None,
    create: bool = True,
    endpoint_url: str | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> CommitLog:
    """Open the log with this name; the first commit creates it. With `create=False`, a log that does not exist is
    `NotFound`. A name of another kind is `Invalid`.

    Examples:
        >>> with worm.open_log("memory://log", "orders") as log:
        ...     log.append([{"op": "put", "key": "a"}]) > 0
        True
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, clock=clock, ids=ids)
    return CommitLog(store, name, config=config, create=create, clock=clock, ids=ids)


class CommitLog:
    """An open log. Its first commit makes this process the writer and fences the previous one. Thread-safe.

    Examples:
        >>> with worm.open_log("memory://log", "orders") as log:
        ...     lsn = log.append([{"op": "put", "key": "a"}])
        ...     lsn == log.head_lsn
        True
    """

    def __init__(
        self, store: Store, name: str, *, config: LogConfig | None, create: bool, clock: Clock, ids: Ids
    ) -> None:
        if config is not None and not isinstance(config, LogConfig):
            raise Invalid(f"takes a LogConfig, not {show(config)}", path="config")
        self.store, self.keys = store, DbKeys(name)
        self._config, self._clock, self._ids = config, clock, ids
        files = LogFiles(store, self.keys, clock=clock, ids=ids, kind="documents")
        if files.root.read() is None and files.is_blank() and not create:
            raise NotFound(
                f"there is no log {name!r} at {store.url}", key=self.keys.root, hint="the first commit creates it"
            )
        self._opening = forks.new_lock()
        self._closed = False
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        """A forked child is not the writer."""
        self._committer: NamedCommit | None = None
        self._retries = Retries()
        self._recalled = False

    def append(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit records together; returns the LSN of the last one. They are durable when it returns. A `txn` that was
        already committed with the same records is not committed again: its LSN is returned. With other records, it is
        `Invalid`."""
        return self.submit(records, txn=txn).result()

    def submit(self, records: Iterable[JsonObject], *, txn: str | None = None) -> Future[int]:
        """Like `append`, without waiting."""
        checked = checked_records(records)
        if self._committer is None:
            # Records that cannot be written must not create a log.
            LogTransaction(txn if txn is not None else "-", checked)
        return self._writing(recalls=txn is not None).submit(checked, txn=txn)

    def read(
        self, after: Position = 0, *, follow: bool = False, poll_seconds: float = POLL_SECONDS
    ) -> Iterator[FeedRecord]:
        """The records after a position, oldest first. With `follow`, it waits for new records and yields them as they
        arrive."""
        return self._reader().feed(after, follow=follow, poll_seconds=poll_seconds)

    @property
    def head_lsn(self) -> int:
        """The newest LSN of the log; 0 for one without commits."""
        tail = self._reader().tail()
        return 0 if tail is None else tail.last_lsn

    def earliest(self) -> int:
        """The first LSN that is kept."""
        return self._reader().earliest()

    def close(self) -> None:
        with self._opening:
            self._closed = True
            committer, self._committer = self._committer, None
        if committer is not None:
            committer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self) -> LogReader:
        return LogReader(self.store, self.keys, clock=self._clock, ids=self._ids)

    def _writing(self, *, recalls: bool) -> NamedCommit:
        with self._opening:
            if self._closed:
                raise Invalid("the log is closed", key=self.keys.log)
            if self._committer is None or self._committer.writer.stopped is not None:
                ensure_safe_once(self.store, ids=self._ids)
                writer = LogWriter.open(self.store, self.keys, config=self._config, clock=self._clock, ids=self._ids)
                self._committer = NamedCommit(writer, retries=self._retries, clock=self._clock, ids=self._ids)
                self._recalled = False
            if recalls and not self._recalled:
                self._committer.recall(self._reader())
                self._recalled = True
            return self._committer


def checked_records(records: Iterable[JsonObject]) -> list[JsonObject]:
    """Records that read back as they were written, each with an `op` that no other room uses."""
    given: object = records
    if isinstance(given, dict | str | bytes) or not isinstance(given, Iterable):
        raise Invalid("records must be a list of JSON objects", hint='for example [{"op": "put", "key": "a"}]')
    listed: list[JsonObject] = []
    for record in given:
        if not isinstance(record, dict):
            raise Invalid("a record must be a JSON object", hint='for example {"op": "put", "key": "a"}')
        check_json(record)
        op = check_name(record.get("op"), 'the "op" of a record')
        if op in OTHER_ROOMS:
            raise Invalid(f'a record with op "{op}" belongs in a page store', hint="open one with `worm.open_pages`")
        listed.append(record)
    return listed
