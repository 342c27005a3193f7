"""Background folds: a save is done when its document and its oplog entry are stored; its table follows.

Each model has a `Backlog`: changes that are stored and not folded yet. The session has one `Folder`. Its thread folds
all backlogs with changes, shortly after the first change arrives, many changes at once. `flush` folds in the calling
thread instead. In the meantime the session's own queries are exact, because they include its own writes. A fold that
fails is tried again; `flush` and `close` raise the errors that remain. A process that ends without closing its session
folds before it ends. A forked child starts with empty backlogs: its parent folds.

If a process is killed, its changes are still in documents and history, and workers or a sweep fold them. For places
without either, the session leaves a *note*, `.worm.unfolded/<ulid>.json`, before its first save of a model, and removes
it when it is closed. A new session looks for the notes of other sessions (one LIST): when it opens a directory,
elsewhere before its first save. If their process is gone, it sweeps the models that they name in the background, and
removes the notes. On the same machine since the same boot, process id and start time show whether the process is gone.
Otherwise the age of the note decides: a session that keeps saving renews its note. A note that is mistaken for
abandoned costs one sweep.

On a directory, queries of other sessions are exact, too. As long as acknowledged saves of a model are not folded, their
session has a *pending note* for it, `.worm.unfolded/pending/<ulid>.json`: put before such a save is acknowledged,
removed after the fold. Before a session answers from a table, it lists the pending notes of others (`await_others`).
Usually there are none. Otherwise it waits until those are gone, because a fold is due within two seconds. If one stays
(its process was killed or stopped, or the fold takes long), it sweeps the model itself and removes the note. That is
safe: a save that finds its note older than `PENDING_SECONDS` leaves another one, so the sweep sees everything that an
old note covers. A pending note costs two writes for each fold. In a bucket there are none, because each query would
need one more request.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakSet

from worm import forks
from worm.clock import Clock, Ids
from worm.errors import Corrupt, WormError
from worm.formats import JsonObject, dumps, loads_own
from worm.store import Store, is_directory
from worm.values import dataclass

T = TypeVar("T")
WINDOW_SECONDS = 0.1
WINDOWS_MAX = 20
"""A fold waits until no change arrives for one window, and for this many windows at most."""
PENDING_MAX = 5_000
"""A model with this many changes is folded by the thread that adds the next one."""
IDLE_SECONDS = 5.0
_folders: WeakSet[Folder] = WeakSet()
UNFOLDED_PATH = ".worm.unfolded/"
PENDING_PATH = f"{UNFOLDED_PATH}pending/"
PENDING_SECONDS = 3.0
"""How long a pending note covers further saves, and how long a query waits for it to go."""
LOOKED_AGAIN_SECONDS = 0.02
RENEWED_AFTER = 15 * 60
ABANDONED_AFTER = timedelta(hours=1)


class Backlog(Generic[T]):
    """The changes of one model that are not folded yet: the newest item of each id. `fold` folds items; it runs in one
    thread at a time. `is_older` exists because threads may add items in a different order than they were recorded.
    `model`: whose table lacks the changes, if other sessions must know."""

    def __init__(self, fold: Callable[[Sequence[T]], None], is_older: Callable[[T, T], bool], model: str = "") -> None:
        self._fold, self._is_older, self.model = fold, is_older, model
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._items: dict[str, T] = {}
        self._lock, self._folding = forks.new_lock(), forks.new_lock()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, items: dict[str, T]) -> None:
        with self._lock:
            self._merge(items)

    def _merge(self, items: dict[str, T]) -> None:
        for name, item in items.items():
            there = self._items.pop(name, None)
            self._items[name] = there if there is not None and self._is_older(item, there) else item

    def fold(self) -> None:
        """Fold everything that is there now. Items that could not be folded stay."""
        with self._folding:
            with self._lock:
                items, self._items = self._items, {}
            if not items:
                return
            try:
                self._fold(list(items.values()))
            except BaseException:
                with self._lock:
                    since, self._items = self._items, items
                    self._merge(since)
                raise


class Folder:
    """The thread of one session. It runs while there is work."""

    def __init__(self, note: UnfoldedNote, window_seconds: float = WINDOW_SECONDS) -> None:
        self.note = note
        self.pending = PendingNotes(note.store, note.clock, note.ids)
        self.others: OtherSessions | None = None
        """On a directory, for a session that can sweep."""
        self._window = window_seconds
        self._backlogs: list[Backlog[object]] = []
        self._begin()
        forks.in_child(self._begin)
        _folders.add(self)

    def _begin(self) -> None:
        """In a forked child the backlogs are empty and still belong to the same models."""
        self._lock = forks.new_lock()
        self._thread: threading.Thread | None = None
        self._due = threading.Event()

    def new_backlog(
        self,
        fold: Callable[[Sequence[T]], None],
        is_older: Callable[[T, T], bool] = lambda item, other: False,
        model: str = "",
    ) -> Backlog[T]:
        made: Backlog[T] = Backlog(fold, is_older, model)
        with self._lock:
            self._backlogs.append(made)  # type: ignore[arg-type]  # only its own method puts items in
        return made

    def add(self, backlog: Backlog[T], items: dict[str, T]) -> None:
        """Fold these soon."""
        backlog.add(items)
        try:
            if backlog.model:
                self.pending.leave(backlog.model)
            if len(backlog) > PENDING_MAX:
                backlog.fold()
        finally:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="worm-fold", daemon=True)
                self._thread.start()
                _fold_at_the_end_of_children()
            self._due.set()

    def flush(self) -> None:
        """Fold everything now. If several folds fail, the first error is raised after all others are done."""
        failures: list[WormError] = []
        left = self.pending.close()
        for backlog in self._known():
            try:
                backlog.fold()
            except WormError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self.pending.remove(left)

    def await_others(self, *models: str) -> bool:
        """Before an answer from the tables of these models: what other sessions on this directory have saved is in
        them. False: maybe not, and this session may not write it."""
        return self.others is None or self.others.have_folded(models)

    def close(self) -> None:
        """Fold everything, and remove the note."""
        self.flush()
        self.note.remove()

    def _known(self) -> list[Backlog[object]]:
        with self._lock:
            return list(self._backlogs)

    def _run(self) -> None:
        pause = self._window
        while self._has_work():
            self._gather(pause)
            try:
                self.flush()
            except WormError:  # the items stay in the backlogs; flush() or close() raises the error
                pause = min(4 * pause, IDLE_SECONDS)
                self._due.set()
            else:
                pause = self._window

    def _gather(self, pause: float) -> None:
        """Wait until nothing new arrived for a moment, or until the first item has waited long enough."""
        for _ in range(WINDOWS_MAX):
            self._due.clear()
            threading.Event().wait(pause)
            if not self._due.is_set():
                return

    def _has_work(self) -> bool:
        """Wait for a change. False: none came for a long time, and this thread ends."""
        if self._due.wait(IDLE_SECONDS):
            return True
        with self._lock:
            if not self._due.is_set():
                self._thread = None
        return self._thread is not None


@dataclass(frozen=True, slots=True)
class Process:
    """Identifies one process. `started` is in the system's own ticks, where the system reports them."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        import platform  # slow to import, and few processes need it

        return cls(platform.node(), _boot(), os.getpid(), _started(os.getpid()))

    def shape(self) -> JsonObject:
        return {"host": self.host, "boot": self.boot, "pid": self.pid, "started": self.started}

    def is_known(self, here: Process) -> bool:
        """Can this machine say whether the process is alive?"""
        return bool(self.boot and self.started) and (self.host, self.boot) == (here.host, here.boot)

    def is_alive(self) -> bool:
        return _started(self.pid) == self.started

    def is_gone(self, here: Process) -> bool:
        """For certain?"""
        return self.is_known(here) and not self.is_alive()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]


class UnfoldedNote:
    """The note of one session. Safe across threads."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self._lock = forks.new_lock()
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._models: set[str] = set()
        self._key = ""
        self._written = 0.0
        self._unfollowed: set[tuple[str, str]] = set()

    def writing(self, model: str, ids: Iterable[str]) -> None:
        """From now on these documents may be stored without their history, until `followed` is called."""
        with self._lock:
            self._unfollowed.update((model, one) for one in ids)

    def followed(self, model: str, ids: Iterable[str]) -> None:
        with self._lock:
            self._unfollowed.difference_update((model, one) for one in ids)

    def leave(self, model: str) -> None:
        """Called before a save whose table follows later is acknowledged."""
        with self._lock:
            now = self.clock.monotonic()
            if model in self._models and now - self._written < RENEWED_AFTER:
                return
            key, models = self._key or f"{UNFOLDED_PATH}{self.ids.ulid()}.json", {*self._models, model}
            self.store.put(key, _encoded(sorted(models), Process.current()))
            self._key, self._models, self._written = key, models, now

    def remove(self) -> None:
        """Everything is folded. The note stays if a write was interrupted before its history was written: another
        session must look at it."""
        with self._lock:
            if self._key and not self._unfollowed:
                self.store.delete(self._key)
            self._begin()


class PendingNotes:
    """The pending notes of one session: what it has acknowledged and not folded. Safe across threads."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self._store, self._clock, self._ids = store, clock, ids
        self.is_needed = is_directory(store)
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._lock = forks.new_lock()
        self._since: dict[str, float] = {}
        self._keys: set[str] = set()

    def leave(self, model: str) -> None:
        """Called when changes of the model are in its backlog, before their saves are acknowledged."""
        if not self.is_needed:
            return
        with self._lock:
            now = self._clock.monotonic()
            if model in self._since and now - self._since[model] < PENDING_SECONDS:
                return
            key = f"{PENDING_PATH}{self._ids.ulid()}.json"
            self._keys.add(key)
            self._store.put(key, _encoded([model], Process.current()))
            self._since[model] = now

    def close(self) -> set[str]:
        """The notes so far. Later saves leave others."""
        with self._lock:
            self._since = {}
            return set(self._keys)

    def remove(self, keys: Iterable[str]) -> None:
        """Everything that these notes cover is folded."""
        for key in keys:
            self._store.delete(key)
            with self._lock:
                self._keys.discard(key)

    def listed(self) -> set[str]:
        return {listed.key for listed in self._store.list(PENDING_PATH)}

    def of_others(self, models: Iterable[str]) -> dict[str, ForeignNote]:
        """The pending notes of other sessions for these models, by key."""
        found: dict[str, ForeignNote] = {}
        for key in self.listed() - self._keys:
            held = self._store.get(key)
            note = None if held is None else ForeignNote(key, *_decoded(held.body, key))
            if note is not None and not {*models}.isdisjoint(note.models):
                found[key] = note
        return found


class OtherSessions:
    """What other sessions on the same directory have saved and not folded. `sweeps` sweeps what their notes name."""

    def __init__(self, pending: PendingNotes, sweeps: Backlog[ForeignNote], clock: Clock) -> None:
        self._pending, self._sweeps, self._clock = pending, sweeps, clock

    def have_folded(self, models: Sequence[str]) -> bool:
        """Wait until everything that they have acknowledged is in the tables, or sweep. False: neither was possible."""
        self._sweeps.fold()  # what a killed session left: another thread may be sweeping it
        left = self._left(models)
        if not left:
            return True
        self._sweeps.add(left)
        self._sweeps.fold()
        return left.keys().isdisjoint(self._pending.of_others(models))

    def _left(self, models: Sequence[str]) -> dict[str, ForeignNote]:
        """The pending notes that their sessions do not remove in time."""
        left = self._pending.of_others(models)
        if not left:
            return left
        here, until = Process.current(), self._clock.monotonic() + PENDING_SECONDS
        while not all(one.process.is_gone(here) for one in left.values()) and self._clock.monotonic() < until:
            self._clock.sleep(LOOKED_AGAIN_SECONDS)
            there = self._pending.listed()
            left = {key: one for key, one in left.items() if key in there}
        return left


@dataclass(frozen=True, slots=True)
class ForeignNote:
    """A note of another session. A note that cannot be read names no models; `worm verify` finds what is missing."""

    key: str
    models: list[str]
    process: Process

    @classmethod
    def abandoned(cls, store: Store, clock: Clock) -> dict[str, ForeignNote]:
        """The notes of sessions that are gone, by key."""
        found: dict[str, ForeignNote] = {}
        here, now = Process.current(), clock.now()
        for listed in store.list(UNFOLDED_PATH):
            held = store.get(listed.key)
            if held is None:
                continue
            models, process = _decoded(held.body, listed.key)
            is_gone = not process.is_alive() if process.is_known(here) else now - held.last_modified > ABANDONED_AFTER
            if is_gone:
                found[listed.key] = cls(listed.key, models, process)
        return found

    def swept(self, store: Store, models: Iterable[str]) -> None:
        """These models are swept. The rest of the note stays for a session that knows the other models."""
        rest = sorted({*self.models}.difference(models))
        if not rest:
            store.delete(self.key)
        elif len(rest) < len(self.models):
            store.put(self.key, _encoded(rest, self.process))


def _encoded(models: Sequence[str], process: Process) -> bytes:
    return dumps({"version": 1, "models": [*models], "process": process.shape()})


def _decoded(body: bytes, key: str) -> tuple[list[str], Process]:
    try:
        shape = loads_own(body, key=key)
        process, models = shape.get("process"), shape.get("models")
    except Corrupt:
        process = models = None
    if not isinstance(process, dict) or not isinstance(models, list):
        return [], Process("", "", 0, "")
    pid = process.get("pid")
    texts = [str(process.get(name, "")) for name in ("host", "boot", "started")]
    return [str(one) for one in models], Process(texts[0], texts[1], pid if isinstance(pid, int) else 0, texts[2])


@atexit.register
def _fold_at_exit() -> None:
    """Folds for programs that do not close their sessions."""
    for folder in list(_folders):
        try:
            folder.close()
        except WormError as error:
            sys.stderr.write(f"worm: the documents are saved, but the tables are behind: {error}; run `worm repair`\n")


def _fold_at_the_end_of_children() -> None:
    """Child processes of `multiprocessing` end without running `atexit` handlers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and sys.modules["multiprocessing"].parent_process() is not None:
        util.Finalize(None, _fold_at_exit, exitpriority=100)
