"""What clients of a log were told, compared with the log by a reader that shares nothing with them (RELIABILITY §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.errors import CommitStateUnknown, WormError
from worm.formats.strict_json import JsonObject
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.store.base import Store


def records(number: int, size: int = 1) -> list[JsonObject]:
    """The records of the transaction with this number."""
    return [{"op": "put", "n": number, "part": part, "of": size} for part in range(1, size + 1)]


@dataclass
class Witness:
    """Keeps every transaction that was asked for, and the answer."""

    asked: dict[str, list[JsonObject]] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def commit(self, writer: LogWriter | GroupCommit, number: int, size: int = 1) -> int:
        """Commit a transaction; the error that it ends in is raised again."""
        txn = f"t{number}"
        self.asked[txn] = records(number, size)
        try:
            lsn = writer.append_wal(self.asked[txn], txn=txn)
        except CommitStateUnknown:
            self.unknown.add(txn)
            raise
        except WormError:  # nothing of it was written
            self.refused.add(txn)
            raise
        self.acked[txn] = lsn
        return lsn

    def check(self, store: Store, db_id: str = "main", *, kept: Sequence[str] | None = None) -> dict[str, int]:
        """Every acknowledged transaction is in the log once, whole and in order; unknown ones once or not at all; no
        other is. `kept`: those whose slots were not collected, if some were. Returns txn → commit LSN."""
        reader = LogReader(store, db_id)
        found: dict[str, list[JsonObject]] = {}
        lsns: dict[str, int] = {}
        for change in reader.feed(reader.earliest() - 1):  # proves slots, epochs and LSNs to be without a gap
            assert change.txn not in lsns, f"{change.txn} is in the log twice"
            found.setdefault(change.txn, []).append(change.record)
            if change.is_last:
                lsns[change.txn] = change.lsn
        acked = {txn: lsn for txn, lsn in self.acked.items() if kept is None or txn in kept}
        assert {txn: lsns.get(txn) for txn in acked} == acked
        assert not self.refused & lsns.keys(), "refused, but in the log"
        assert lsns.keys() <= acked.keys() | self.unknown, "something else is in the log"
        assert found == {txn: self.asked[txn] for txn in found}
        order = list(self.acked)  # they were asked for one after the other
        assert sorted(order, key=self.acked.__getitem__) == order
        return lsns
