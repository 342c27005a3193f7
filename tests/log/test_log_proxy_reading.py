"""Collecting, reading, storms and refusals over a network that fails: F07, F09, F10, F48 of RELIABILITY.md §4, ring P.

Requests go through a failing proxy to moto; each row ends with a look at the log straight on moto.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fault_proxy import Fault, answer, cut, drop, hang, late, shorten
from tests.log.wire import KEYS, LOG, REQUESTS_MAX, ROOT, Wire, patience
from tests.log.witness import Witness
from worm.errors import CommitStateUnknown, Corrupt, Denied, Unavailable, WormError
from worm.log.config import LogConfig
from worm.log.fence import LogFiles
from worm.log.reader import LogReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_environment"), pytest.mark.xdist_group("log-proxy")]


@pytest.mark.parametrize("fault", [drop(after=True), answer(500, after=True), answer(412, after=True), late()])
def test_f07_a_boundary_whose_answer_is_lost_is_raised_once_and_can_be_raised_again(wire: Wire, fault: Fault) -> None:
    writer = wire.writer()
    for number in range(1, 7):
        wire.commit(writer, number)
    wire.age()
    for upto in (2, 4):
        wire.proxy.fail("PUT", ROOT, fault)
        done = wire.collector().run(upto)
        assert (done.boundary, done.deleted) == (upto, 2)
    root = LogFiles(wire.direct, KEYS, clock=wire.clock, ids=wire.direct.ids).root.read()
    assert root is not None
    assert (root.boundary, root.version) == (4, 3)  # the first came with the log
    wire.commit(writer, 7)
    assert wire.witness.check(wire.direct, kept=["t4", "t5", "t6", "t7"]).keys() == {"t4", "t5", "t6", "t7"}


@pytest.mark.parametrize(
    ("method", "part", "fault"),
    [
        ("DELETE", LOG, drop(after=True)),
        ("DELETE", LOG, answer(503)),
        ("DELETE", LOG, answer(500, after=True)),
        ("GET", "list-type", answer(503)),
        ("GET", "list-type", cut()),
        ("HEAD", LOG, drop(after=False)),
        ("GET", ROOT, answer(500)),
        ("PUT", "gc/clock", answer(503)),
    ],
)
def test_collecting_goes_on_where_single_requests_fail(wire: Wire, method: str, part: str, fault: Fault) -> None:
    writer = wire.writer()
    for number in range(1, 5):
        wire.commit(writer, number)
    wire.age()
    wire.proxy.fail(method, part, fault, times=2)
    assert wire.collector().run(3).deleted == 3
    wire.commit(writer, 5)
    assert wire.witness.check(wire.direct, kept=["t3", "t4", "t5"]).keys() == {"t3", "t4", "t5"}


def test_a_collector_that_is_refused_halfway_leaves_what_the_next_one_takes(wire: Wire) -> None:
    """I8: the boundary was raised before the first DELETE."""
    writer = wire.writer()
    for number in range(1, 7):
        wire.commit(writer, number)
    wire.age()
    wire.proxy.fail("DELETE", LOG, answer(403), times=None, skip=2)
    before = wire.proxy.count()
    with pytest.raises(Denied):
        wire.collector().run(5)
    order = [
        one for one in wire.proxy.seen[before:] if one.method == "DELETE" or (one.method == "PUT" and ROOT in one.key)
    ]
    assert [one.method for one in order] == ["PUT", "DELETE", "DELETE", "DELETE"]
    wire.proxy.heal()
    kept = ["t5", "t6"]
    assert wire.witness.check(wire.direct, kept=kept).keys() == set(kept)
    assert wire.collector().run(5).deleted == 3
    assert wire.witness.check(wire.direct, kept=kept).keys() == set(kept)


def test_f09_a_storm_of_slow_down_loses_nothing_and_passes(wire: Wire) -> None:
    """30 % of all requests. A writer that stopped is followed by the next."""
    wire.proxy.fail("*", "", answer(503), times=None, share=0.3)
    writer, number, opened = wire.writer(), 100, 1
    before = wire.proxy.count()
    for number in range(1, 101):
        try:
            wire.commit(writer, number)
        except WormError:
            writer, opened = wire.writer(), opened + 1
        wire.clock.sleep(0.25)
    assert len(wire.witness.acked) >= 0.9 * number
    assert wire.proxy.count() - before < 6 * number
    told = Counter(one.told for one in wire.proxy.seen)
    assert told[503] > 0.2 * told.total()
    wire.proxy.heal()
    healed = wire.proxy.count()
    wire.commit(writer, number + 1)
    assert wire.proxy.count() - healed == 1  # I10: back at the budget
    assert len(wire.check()) >= len(wire.witness.acked)


@pytest.mark.parametrize("fault", [cut(), drop(after=True), hang(after=True), answer(500)])
def test_f10_a_body_that_is_cut_is_read_again(wire: Wire, fault: Fault) -> None:
    writer = wire.writer()
    for number in range(1, 6):
        wire.commit(writer, number)
    wire.proxy.fail("GET", LOG, fault, times=3)
    through = Witness(wire.witness.asked, wire.witness.acked)
    assert through.check(wire.store(patience(fault))).keys() == wire.check().keys()


def test_f10_a_body_that_is_always_cut_is_never_data(wire: Wire) -> None:
    writer = wire.writer()
    wire.commit(writer, 1)
    wire.proxy.fail("GET", LOG, cut(), times=None)
    before = wire.proxy.count()
    with pytest.raises(Unavailable):
        list(LogReader(wire.store(), "main", clock=wire.clock).feed())
    assert wire.proxy.count() - before <= 40
    with pytest.raises(Unavailable):
        wire.writer()  # it reads the end of the log
    wire.proxy.heal()
    wire.commit(wire.writer(), 2)
    assert wire.check().keys() == {"t1", "t2"}


@pytest.mark.parametrize("where", ["in a line", "after a line", "everything"])
def test_f10_a_body_that_is_too_short_and_says_so_is_corrupt(wire: Wire, where: str) -> None:
    """A line's CRC does not tell that the lines after it are gone: a transaction would be there in part."""
    writer = wire.writer()
    wire.witness.commit(writer, 1, size=5)
    segment = wire.direct.get(KEYS.slot(2))
    assert segment is not None
    lines = segment.body.splitlines(keepends=True)
    size = {"in a line": len(segment.body) - 5, "after a line": len(b"".join(lines[:3])), "everything": 0}[where]
    wire.proxy.fail("GET", KEYS.slot(2), shorten(size), times=None)
    with pytest.raises(Corrupt):
        list(LogReader(wire.store(), "main", clock=wire.clock).feed())
    with pytest.raises(Corrupt):
        wire.writer()


def test_f48_a_commit_that_is_refused_is_denied_and_not_in_the_log(wire: Wire) -> None:
    writer = wire.writer()
    wire.proxy.fail("PUT", LOG, answer(403), times=3)
    before = wire.proxy.count()
    for number in (1, 2, 3):
        with pytest.raises(Denied):
            wire.commit(writer, number)
    assert wire.proxy.count() - before == 3  # no busy loop
    wire.commit(writer, 4)  # the credentials are back
    assert wire.check().keys() == {"t4"}


@pytest.mark.parametrize("method", ["*", "PUT"], ids=["for everything", "for writing"])
@pytest.mark.parametrize("status", [401, 403])
def test_f48_credentials_that_end_after_an_unclear_answer_leave_it_unknown(
    wire: Wire, status: int, method: str
) -> None:
    writer = wire.writer()
    wire.proxy.fail("PUT", LOG, drop(after=False))
    wire.proxy.fail(method, LOG, answer(status), times=None)
    before = wire.proxy.count()
    with pytest.raises(CommitStateUnknown):
        wire.commit(writer, 1)
    assert wire.proxy.count() - before <= REQUESTS_MAX
    wire.proxy.heal()
    wire.commit(wire.writer(), 2)
    assert wire.check().keys() == {"t2"}


@pytest.mark.parametrize("status", [403, 500])
def test_f48_a_boundary_that_cannot_be_read_leaves_the_commit_unknown(wire: Wire, status: int) -> None:
    """It is in the log by then, so 'denied' would be a lie."""
    writer = wire.writer(LogConfig(gc_min_age_seconds=60))
    wire.clock.sleep(31)  # from now on a commit looks at the boundary
    wire.proxy.fail("GET", ROOT, answer(status), times=None)
    with pytest.raises(CommitStateUnknown):
        wire.commit(writer, 1)
    assert isinstance(writer.stopped, CommitStateUnknown)
    wire.proxy.heal()
    wire.commit(wire.writer(), 2)
    assert wire.check().keys() == {"t1", "t2"}


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT"])
def test_f48_an_opening_that_is_refused_is_denied_and_fences_nobody(wire: Wire, method: str) -> None:
    writer = wire.writer()
    wire.commit(writer, 1)
    wire.proxy.fail(method, "/main/", answer(403), times=None)
    before = wire.proxy.count()
    with pytest.raises(Denied):
        wire.writer()
    assert wire.proxy.count() - before <= 12
    wire.proxy.heal()
    wire.commit(writer, 2)
    assert wire.check().keys() == {"t1", "t2"}
