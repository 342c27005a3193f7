"""What must hold after a run of `page_simulation.py`, whatever happened in it."""

from __future__ import annotations

from tests.log.simulation import MIN_AGE, true_log
from tests.pages.page_simulation import DB, NAMES, PageSimulation, Seen
from tests.pages.page_witness import PageWitness, Written, folded_log
from worm.clock import Ids
from worm.errors import WormError
from worm.log.keys import DbKeys
from worm.pages.apply import Applier
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb
from worm.pages.reader import PageReader


def check(simulation: PageSimulation) -> None:
    """I1 and I3 of what was told, then I4 and I6 to I8 of what is stored."""
    memory, record = simulation.memory, simulation.record
    logs: dict[str, list[Written]] = {}
    found: dict[str, list[tuple[str, int]]] = {}
    ids = {""} | {one.branch_id for one in record.commits.values()} | {i for s in record.seen for i, _ in s.ancestry}
    bases = branch_bases(simulation)
    for branch_id in ids:
        keys = DbKeys(DB, branch_id)
        logs[branch_id] = [written for _, written in folded_log(memory, keys, bases[branch_id])]
        for segment in true_log(memory, keys):
            for entry_txn, lsn in {entry.txn: entry.lsn for entry in segment.entries}.items():
                found.setdefault(entry_txn, []).append((branch_id, bases[branch_id] + lsn))
    for txn, commit in record.commits.items():
        if commit.answered:
            assert found.get(txn) == [(commit.branch_id, commit.lsn)], f"{txn} was acknowledged"
        assert not (commit.is_refused and txn in found), f"{txn} was refused, and is in the log"
        assert len(found.get(txn, ())) <= 1
    for seen in record.seen:
        _check_seen(simulation, seen, logs)
    PageWitness(memory, DB, grace=0).check(simulation.seed)  # who sleeps before a drop is published shortens it


def branch_bases(simulation: PageSimulation) -> dict[str, int]:
    """Where each branch that ever was was forked, by all roots that ever were."""
    bases = {"": 0}
    for shape in PageWitness(simulation.memory, DB).roots():
        bases |= {one["id"]: one.get("base", 0) for one in shape["pages"]["branches"].values() if one.get("id")}
    return bases


def _check_seen(simulation: PageSimulation, seen: Seen, logs: dict[str, list[Written]]) -> None:
    commits = [one for one in simulation.record.commits.values() if one.branch_id == seen.branch_id]
    acked = [one.lsn for one in commits if 0 < one.answered < seen.asked]
    assert seen.head >= max(acked, default=0), "a reader that looked lacks what was acknowledged before"
    if seen.pages is None:
        root = PageWitness(simulation.memory, DB).root["pages"]
        horizons = {one.get("id", ""): one.get("horizon", 0) for one in root["branches"].values()}
        assert any(upto < horizons.get(branch_id, upto + 1) for branch_id, upto in seen.ancestry), (
            "refused in the window"
        )
        return
    state: dict[str, tuple[int, bytes | None]] = {}
    for branch_id, upto in reversed(seen.ancestry):
        for page, lsn, data in sorted(logs[branch_id], key=lambda one: one[1]):
            if lsn <= upto:
                state[page] = (lsn, data)
    want = {page: state.get(page, (0, None))[1] for page in NAMES}
    assert seen.pages == want, f"a read of {seen.ancestry} at LSN {seen.lsn}"


def heal(simulation: PageSimulation) -> None:
    """When the faults stop, all work is done at once, by whoever comes: I10."""
    memory, clock = simulation.memory, simulation.clock
    ids = Ids.seeded(simulation.seed ^ 7, clock)
    with PageDb.open(memory, DB, clock=clock, ids=ids) as db:
        db.write({"p00": b"healed"})
    try:
        for name in list(PageReader.open(memory, DB, clock=clock, ids=ids).pages.branches):
            Applier(memory, DB, clock=clock, ids=ids).run(name)
            for _ in range(20):
                if Compactor(memory, DB, clock=clock, ids=ids).run(name, force=True).is_done:
                    break
        for _ in range(3):
            clock.advance(3 * MIN_AGE)
            PageCollector(memory, DB, clock=clock, ids=ids).run()
    except WormError as error:
        raise AssertionError(f"what is left cannot be worked on: {error}") from error
    reader = PageReader.open(memory, DB, clock=clock, ids=ids)
    assert reader.get_page("p00") == b"healed"
    witness = PageWitness(memory, DB)
    left = {
        one.key.removeprefix(f"db/{DB}/") for part in ("delta/", "image/") for one in memory.list(f"db/{DB}/{part}")
    }
    named = witness.named() | witness.dropped()
    assert len(left - named) <= 2, "orphans of older compactions are left"
