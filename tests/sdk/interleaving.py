"""The orders in which the requests of some sessions can reach the store, one run for each.

Each actor is a thread that stops before every request. `run` lets exactly one of them go on at a time, so that a run is
given by the list of who went on when. `every_order` goes through all orders in which a session that could go on has to
wait for another at most so many times; most races need one or two such switches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worm.errors import WormError
from worm.store.base import Attempt, Condition, NotModified, Object, ObjectInfo, Store, Won
from worm.store.faulty_store import FaultyStore
from worm.store.memory import MemoryStore

STEPS_MAX = 400
Actor = Callable[[Store], object]


class _Gate:
    """Where one actor waits for its turn."""

    def __init__(self) -> None:
        self._turn = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self.is_done = False

    def wait(self) -> None:
        self._stopped.release()
        self._turn.acquire()

    def finish(self) -> None:
        self.is_done = True
        self._stopped.release()

    def go_on(self) -> None:
        """Until the next request, or the end."""
        self._turn.release()
        self.until_stopped()

    def until_stopped(self) -> None:
        assert self._stopped.acquire(timeout=60), "an actor hangs"


class GatedStore(FaultyStore):
    """Waits before every request."""

    def __init__(self, inner: MemoryStore, gate: _Gate) -> None:
        super().__init__(inner, clock=inner.clock, ids=inner.ids)  # shared ids: no two writes have the same put id
        self._gate = gate

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        self._gate.wait()
        return super().get(key, version_id=version_id, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        self._gate.wait()
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._gate.wait()
        return super().get_range(key, start, length)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._gate.wait()
        return super().head(key, version_id=version_id)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._gate.wait()
        return super().put(key, body, metadata=metadata)

    def delete(self, key: str) -> None:
        self._gate.wait()
        super().delete(key)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._gate.wait()
        return super().attempt_put(key, body, condition, metadata)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._gate.wait()
        return super().attempt_delete(key, etag)


@dataclass
class Run:
    """One order, and what became of each actor: its result, or its error."""

    order: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)
    outcomes: dict[int, object] = field(default_factory=dict)

    def accepted(self) -> list[int]:
        return sorted(number for number, outcome in self.outcomes.items() if not isinstance(outcome, WormError))


def run(store: MemoryStore, actors: Sequence[Actor], prefix: Sequence[int], switches_max: int) -> Run:
    """`prefix` says which of those that may go on does; after it the first does, which is the one that just went."""
    ran, gates = Run(), [_Gate() for _ in actors]
    for number, actor in enumerate(actors):
        threading.Thread(target=_act, args=(ran, number, actor, store, gates[number]), daemon=True).start()
        gates[number].until_stopped()
    last, switches = -1, 0
    while waiting := sorted((n for n, gate in enumerate(gates) if not gate.is_done), key=lambda n: (n != last, n)):
        step = len(ran.order)
        assert step < STEPS_MAX, "the actors never end"
        may_switch = waiting[0] != last or switches < switches_max
        ran.options.append(len(waiting) if may_switch else 1)
        chosen = prefix[step] if step < len(prefix) else 0
        switches += chosen > 0 and waiting[0] == last
        ran.order.append(chosen)
        last = waiting[chosen]
        gates[last].go_on()
    for outcome in ran.outcomes.values():
        if isinstance(outcome, BaseException) and not isinstance(outcome, WormError):
            raise outcome
    return ran


def _act(ran: Run, number: int, actor: Actor, store: MemoryStore, gate: _Gate) -> None:
    gate.wait()
    try:
        ran.outcomes[number] = actor(GatedStore(store, gate))
    except BaseException as error:  # noqa: BLE001 - raised again by `run`, in the thread of the test
        ran.outcomes[number] = error
    gate.finish()


def every_order(
    prepare: Callable[[], tuple[MemoryStore, Sequence[Actor]]], *, switches_max: int, runs_max: int = 2000
) -> Iterator[Run]:
    """A run of each order, on what `prepare` makes for it. Fails when there are more than `runs_max`."""
    prefix: list[int] = []
    for _ in range(runs_max):
        store, actors = prepare()
        ran = run(store, actors, prefix, switches_max)
        yield ran
        order, options = list(ran.order), list(ran.options)
        while order and order[-1] == options[-1] - 1:
            order.pop()
            options.pop()
        if not order:
            return
        prefix = [*order[:-1], order[-1] + 1]
    raise AssertionError(f"more than {runs_max} orders")
