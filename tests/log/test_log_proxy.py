"""Commits and openings over a network that fails: F01 to F06 of RELIABILITY.md §4, ring P.

Requests go through a failing proxy to moto; each row ends with a look at the log straight on moto.
"""

from __future__ import annotations

import threading

import pytest

from tests.fault_proxy import Fault, answer, drop, hang, late
from tests.log.wire import KEYS, LEASE, LOG, REQUESTS_MAX, Wire, patience
from tests.log.witness import Witness
from worm.errors import CommitStateUnknown, Unavailable
from worm.log.fence import LogFiles
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_environment"), pytest.mark.xdist_group("log-proxy")]


AFTER = {
    "F01 dropped": drop(after=True),
    "F01 no answer": hang(after=True),
    "F02 500": answer(500, after=True),
    "F02 503": answer(503, after=True),
    "F02 a hidden retry saw 412": answer(412, after=True),
    "F02 409": answer(409, after=True),
}
BEFORE = {
    "F04 dropped": drop(after=False),
    "F04 no answer": hang(after=False),
    "F04 500": answer(500),
    "F04 503": answer(503),
    "F05 409": answer(409),
}


@pytest.mark.parametrize("row", AFTER)
def test_a_commit_that_landed_without_a_clear_answer_is_acknowledged_once(wire: Wire, row: str) -> None:
    writer = wire.writer(timeout_seconds=patience(AFTER[row]))
    wire.commit(writer, 1)
    wire.proxy.fail("PUT", LOG, AFTER[row])
    before = wire.proxy.count()
    assert wire.commit(writer, 2) == writer.last_lsn
    assert wire.proxy.count() - before == 2  # the PUT, and the GET that found it
    wire.commit(writer, 3)
    assert wire.proxy.count() - before == 3
    assert wire.check().keys() == {"t1", "t2", "t3"}


@pytest.mark.parametrize("row", AFTER)
@pytest.mark.parametrize("part", [LOG, LEASE])
def test_opening_with_an_answer_lost_takes_one_epoch(wire: Wire, row: str, part: str) -> None:
    """F07: the etag of what was stored is found again, so that the next compare-and-swap works."""
    for number in (1, 2):
        wire.proxy.fail("PUT", part, AFTER[row])
        writer = wire.writer(timeout_seconds=patience(AFTER[row]))
        assert writer.epoch == number
        wire.commit(writer, number)
    lease = LogFiles(wire.direct, KEYS, clock=wire.clock, ids=wire.direct.ids).lease.read()
    assert lease is not None
    assert (lease.epoch, lease.version) == (2, 2)
    assert wire.check().keys() == {"t1", "t2"}
    assert [one.kind for one in LogReader(wire.direct, "main").segments()] == ["fence", "data", "fence", "data"]


@pytest.mark.parametrize("hangs", [False, True], ids=["dropped", "timed out"])
def test_f03_a_commit_that_lands_after_the_look_is_there_once(wire: Wire, hangs: bool) -> None:
    writer = wire.writer(timeout_seconds=0.8 if hangs else 20.0)
    wire.proxy.fail("PUT", LOG, late(hangs=hangs))
    wire.commit(writer, 1)
    puts = [(one.applied, one.told) for one in wire.proxy.seen if one.method == "PUT" and LOG in one.key][1:]
    assert puts == [(200, None), (412, 412)]
    wire.commit(writer, 2)
    assert wire.check().keys() == {"t1", "t2"}


def test_f03_a_commit_that_lands_after_a_new_writer_came_is_shut_out(wire: Wire) -> None:
    writer = wire.writer()
    wire.commit(writer, 1)
    wire.proxy.fail("PUT", LOG, late())
    wire.proxy.fail("GET", LOG, answer(503), times=None)
    with pytest.raises(CommitStateUnknown):
        wire.commit(writer, 2)
    wire.witness.commit(LogWriter.open(wire.direct, "main"), 3)
    wire.proxy.heal()
    assert [one.applied for one in wire.proxy.seen if one.method == "PUT" and one.told is None] == [412]
    assert wire.check().keys() == {"t1", "t3"}


@pytest.mark.parametrize("row", BEFORE)
def test_a_commit_that_did_not_arrive_is_sent_again(wire: Wire, row: str) -> None:
    times = 1 if BEFORE[row].how == "hang" else 3
    writer = wire.writer(timeout_seconds=patience(BEFORE[row]))
    wire.proxy.fail("PUT", LOG, BEFORE[row], times=times)
    before = wire.proxy.count()
    wire.commit(writer, 1)
    assert wire.proxy.count() - before == 2 * times + 1  # each try is followed by a look
    waits = wire.clock.waits
    assert len(waits) == len(set(waits))  # jittered
    # after a 503 the process may also delay its requests, see pace.py: how often depends on the speed of the machine
    assert len(waits) >= times if "503" in row else len(waits) == times
    assert writer.stopped is None
    assert wire.check().keys() == {"t1"}


@pytest.mark.parametrize("row", [name for name in BEFORE if "no answer" not in name])
def test_f06_a_store_that_never_decides_ends_as_unknown_and_stops_the_writer(wire: Wire, row: str) -> None:
    writer = wire.writer()
    wire.commit(writer, 1)
    wire.proxy.fail("PUT", LOG, BEFORE[row], times=None)
    before = wire.proxy.count()
    with pytest.raises(CommitStateUnknown):
        wire.commit(writer, 2)
    spent = wire.proxy.count()
    assert spent - before <= 24
    with pytest.raises(Unavailable, match="stopped"):
        wire.commit(writer, 3)
    assert wire.proxy.count() == spent  # a stopped writer asks nobody
    wire.proxy.heal()
    wire.commit(wire.writer(), 4)
    assert wire.check().keys() == {"t1", "t4"}


@pytest.mark.parametrize("status", [403, 500, 503])
def test_f06_a_commit_that_landed_and_cannot_be_read_back_is_unknown_and_there(wire: Wire, status: int) -> None:
    writer = wire.writer()
    wire.proxy.fail("PUT", LOG, drop(after=True))
    wire.proxy.fail("GET", LOG, answer(status), times=None)
    before = wire.proxy.count()
    with pytest.raises(CommitStateUnknown):
        wire.commit(writer, 1)
    assert wire.proxy.count() - before <= REQUESTS_MAX
    assert isinstance(writer.stopped, CommitStateUnknown)
    wire.proxy.heal()
    wire.commit(wire.writer(), 2)
    assert wire.check().keys() == {"t1", "t2"}


def test_f06_an_opening_that_never_ends_is_an_error_and_leaves_the_log_usable(wire: Wire) -> None:
    wire.proxy.fail("PUT", LOG, answer(500), times=None)
    with pytest.raises(CommitStateUnknown):
        wire.writer()
    wire.proxy.heal()
    wire.commit(wire.writer(), 1)
    assert wire.check().keys() == {"t1"}


def test_f06_a_lease_that_is_never_decided_is_given_up_in_bounded_time(wire: Wire) -> None:
    wire.proxy.fail("PUT", LEASE, answer(409), times=None)
    with pytest.raises(Unavailable):
        wire.writer()
    assert sum(wire.clock.waits) < 90.0
    assert wire.proxy.count() <= REQUESTS_MAX


@pytest.mark.parametrize("fault", [drop(after=True), answer(409), late()])
def test_group_commit_with_one_failing_request_acknowledges_each_once(wire: Wire, fault: Fault) -> None:
    group = GroupCommit(wire.writer(), clock=wire.clock)
    wire.proxy.fail("PUT", LOG, fault, times=2)
    tell = threading.Lock()

    def run(number: int) -> None:
        own = Witness()
        own.commit(group, number, size=2)
        with tell:
            wire.witness.asked |= own.asked
            wire.witness.acked |= own.acked

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    group.close()
    wire.witness.acked = dict(sorted(wire.witness.acked.items(), key=lambda item: item[1]))
    assert len(wire.check()) == 16
    assert group.committed == 16


def test_group_commit_on_a_store_that_never_decides_acknowledges_nobody(wire: Wire) -> None:
    group = GroupCommit(wire.writer(), clock=wire.clock)
    wire.proxy.fail("PUT", LOG, answer(500), times=None)
    wire.witness.asked = {f"t{number}": [{"op": "put", "n": number}] for number in range(8)}
    before = wire.proxy.count()
    waiting = [group.submit(records, txn=txn) for txn, records in wire.witness.asked.items()]
    errors = [one.exception(timeout=60) for one in waiting]
    assert isinstance(errors[0], CommitStateUnknown)
    assert all(isinstance(error, Unavailable) for error in errors)
    assert wire.proxy.count() - before <= 24  # one segment was tried, the others were told without a request
    wire.witness.unknown = set(wire.witness.asked)
    wire.proxy.heal()
    wire.commit(wire.writer(), 100)
    assert wire.check().keys() == {"t100"}
