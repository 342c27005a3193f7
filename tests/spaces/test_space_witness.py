"""The order of commits as a witness: eight sessions at once, and every answer compared with the log.

Every acknowledged transaction is in the log once; one that was acknowledged before another began stands before it; a
read is the fold of the log up to its seq, and that is not before the newest acknowledgement when it began; a
transaction whose answer was lost is there once or not at all.
"""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass, field

import pytest

from tests.spaces.oracle import Documents, after
from tests.spaces.space_room import DyingBackend, Killed, Room
from worm.errors import Conflict
from worm.formats.strict_json import JsonObject
from worm.spaces.operations import patch_document, set_document
from worm.spaces.results import Entity
from worm.spaces.space import Space

IDS = [f"e{n}" for n in range(6)]
SESSIONS = 8


@dataclass
class Told:
    """What one session asked for and was told; times are of one counter that all share."""

    acked: list[tuple[int, int, int, int]] = field(default_factory=list)  # local_seq, begun, ended, seq
    unknown: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    reads: list[tuple[int, dict[str, Entity]]] = field(default_factory=list)  # begun, what was seen
    error: BaseException | None = None


def _work(room: Room, space: Space, name: str, told: Told, clock: itertools.count[int], seed: int, count: int) -> None:
    rng = random.Random(seed)
    try:
        for local_seq in range(1, count + 1):
            begun = next(clock)
            seen = space.read_many(IDS)
            told.reads.append((begun, seen))
            chosen = rng.sample(IDS, rng.randint(1, 3))
            ops = [_operation(one, name, local_seq, is_whole=rng.random() < 0.5) for one in chosen]
            reads = [seen[one] for one in chosen] if rng.random() < 0.5 else []
            begun = next(clock)
            writer, is_lost = space, rng.random() < 0.1
            if is_lost:
                writer = Space(DyingBackend.of(room.backend(), is_written=rng.random() < 0.5), clock=room.clock)
            try:
                done = writer.transact(ops, session_id=name, local_seq=local_seq, reads=reads)
                told.acked.append((local_seq, begun, next(clock), done.seq))
            except Killed:
                told.unknown.append(local_seq)
            except Conflict:
                told.refused.append(local_seq)
            if is_lost:
                writer.close()
    except BaseException as error:  # noqa: BLE001  # told by the test
        told.error = error


def _operation(id: str, name: str, number: int, *, is_whole: bool) -> JsonObject:
    if is_whole:
        return set_document(id, {"by": name, "n": number})
    return patch_document(id, [{"op": "add", "path": f"/{name}", "value": number}])


def _check(space: Space, sessions: dict[str, Told]) -> None:
    seqs: dict[tuple[str, int], int] = {}
    states: list[Documents] = [{one: {} for one in IDS}]
    for entry in space.log():
        assert (entry.session_id, entry.local_seq) not in seqs, "in the log twice"
        seqs[entry.session_id, entry.local_seq] = entry.seq
        operations = entry.original["operations"]
        assert isinstance(operations, list)
        states.append(after(states[-1], [op for op in operations if isinstance(op, dict)]))
    assert list(seqs.values()) == list(range(1, len(seqs) + 1))
    spans = []
    for name, told in sessions.items():
        if told.error is not None:
            raise told.error
        for local_seq, begun, ended, seq in told.acked:
            assert seqs[name, local_seq] == seq
            spans.append((begun, ended, seq))
        assert not any((name, local_seq) in seqs for local_seq in told.refused)
        for begun, seen in told.reads:
            (at,) = {one.at for one in seen.values()}
            assert {one: found.value for one, found in seen.items()} == states[at], "not the fold of the log"
            newest = max(
                (seq for other in sessions.values() for _, _, ended, seq in other.acked if ended < begun), default=0
            )
            assert at >= newest, "older than what was acknowledged before"
    for (begun, _, seq), (_, ended, other) in itertools.product(spans, spans):
        assert ended >= begun or other < seq, "acknowledged before it began, but behind it"
    known = {(name, one[0]) for name, told in sessions.items() for one in told.acked}
    doubtful = {(name, one) for name, told in sessions.items() for one in told.unknown}
    assert known <= seqs.keys() <= known | doubtful | {("setup", 1)}


def _run(room: Room, count: int, is_shared: bool) -> None:
    first = room.open(snapshot_every=5)
    first.transact([set_document(one, {}) for one in IDS], session_id="setup", local_seq=1)
    clock: itertools.count[int] = itertools.count(1)
    sessions = {f"s{n}": Told() for n in range(SESSIONS)}
    threads = []
    for number, (name, told) in enumerate(sessions.items()):
        space = first if is_shared else room.open(snapshot_every=3, cache_bytes=2000)
        arguments = (room, space, name, told, clock, number, count)
        threads.append(threading.Thread(target=_work, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _check(room.open(), sessions)
    assert sum(len(told.acked) for told in sessions.values()) > count


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False])
def test_eight_sessions_at_once_are_one_order(room: Room, is_shared: bool) -> None:
    _run(room, 6, is_shared)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_shared", [True, False])
def test_eight_busy_sessions_at_once_are_one_order(room: Room, is_shared: bool) -> None:
    _run(room, 100 if room.kind == "sqlite" else 25, is_shared)
