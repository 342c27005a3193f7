"""How a read is planned and spread: little work for the driver, documents in bulk for the tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.spark.source_room import SourceRoom, memory_url
from worm.store.base import Object, Read, Store


def test_the_driver_lists_little_and_tasks_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    room = SourceRoom(memory_url())
    for number in range(40):
        room.things.save(room.things.create({"count": number}, id=f"t{number:02d}"))
    store, bulks = room.spec.store(), list[int]()
    reader = room.reader()
    with store.requests.measure() as planning:
        partitions = reader.partitions()
    many = type(store).get_many

    def counted(self: Store, reads: Sequence[Read], **limits: int) -> Sequence[Object | Exception | None]:
        bulks.append(len(reads))
        return many(self, reads, **limits)

    monkeypatch.setattr(type(store), "get_many", counted)
    with store.requests.measure() as reading:
        rows = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]

    assert len(partitions) == 4
    assert planning["total"] < 20, planning
    assert (len(rows), sum(bulks), len(bulks)) == (40, 40, 4)
    assert reading["LIST"] <= 3 * len(partitions), reading
