"""What a failing test says of a `Corrupt`: the stored bytes of the object that it names, and of those beside it.

The store is found in the frames that the error came through. The report is for people; it makes requests of its own, to
the store under any that injects faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from worm.errors import Corrupt, WormError
from worm.store.base import Store
from worm.store.faulty_store import FaultyStore
from worm.store.resolve import ResolvedWrites

OBJECTS_MAX = 20
BYTES_MAX = 600


def stored_around(error: BaseException) -> str | None:
    """The report of the first `Corrupt` in the chain of an error; None where there is none."""
    damage = next((one for one in _chain(error) if isinstance(one, Corrupt)), None)
    if damage is None:
        return None
    store = next(_stores(damage.__traceback__), None)
    if store is None or not damage.key:
        return f"{damage!r}\n(no store, or no key: nothing to show)"
    try:
        return "\n".join([repr(damage), *_lines(store, damage.key)])
    except WormError as failure:
        return f"{damage!r}\n(the objects cannot be read: {failure!r})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _stores(trace: TracebackType | None) -> Iterator[Store]:
    """Stores at hand where the error was raised, the innermost first."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        for local in list(frame.f_locals.values()):
            for candidate in (local, *vars(local).values()) if hasattr(local, "__dict__") else (local,):
                if isinstance(candidate, ResolvedWrites):
                    while isinstance(candidate, FaultyStore):
                        candidate = candidate.inner
                    yield candidate


def _lines(store: Store, key: str) -> Iterator[str]:
    yield from _shown(store, key)
    directory = key.rpartition("/")[0] + "/"
    beside = [one.key for one in store.list(directory, limit=OBJECTS_MAX + 1) if one.key != key] if "/" in key else []
    for other in beside[:OBJECTS_MAX]:
        yield from _shown(store, other)
    if len(beside) > OBJECTS_MAX:
        yield f"  … and more under {directory}"


def _shown(store: Store, key: str) -> Iterator[str]:
    found = store.get(key)
    if found is None:
        yield f"  {key}: not there"
        return
    cut = " …" if len(found.body) > BYTES_MAX else ""
    yield f"  {key} ({found.size} bytes, {found.etag}, {found.last_modified}, version {found.version_id})"
    yield f"    {found.body[:BYTES_MAX]!r}{cut}"
