"""The same verbs as coroutines."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import worm
from scripts.generate_async import TARGET, formatted
from tests.sdk.sessions import schema
from worm.errors import Conflict, Invalid
from worm.sdk.aio import AsyncModel, AsyncTransaction, AsyncWorm
from worm.sdk.database import Model, Worm
from worm.sdk.document import DocumentDict
from worm.sdk.transacting import DocumentTransaction


def test_the_file_is_what_the_script_writes() -> None:
    assert TARGET.read_text() == formatted()


def test_every_verb_is_there() -> None:
    for made, of in ((AsyncModel, Model), (AsyncTransaction, DocumentTransaction), (AsyncWorm, Worm)):
        verbs = {name for name, value in vars(of).items() if callable(value) and not name.startswith("_")}
        verbs |= {name for base in of.__mro__ if base.__module__.startswith("worm.sdk") for name in vars(base)}
        missing = {name for name in verbs - set(dir(made)) if not name.startswith("_")}
        assert missing <= {"typed", "check_removing", "logged", "table", "close"}, made


def test_a_program(tmp_path: Path) -> None:
    async def main() -> None:
        async with worm.aconnect(str(tmp_path), schema=schema()) as db:
            customers = db.model("Customer")
            await asyncio.gather(*(customers.insert({"id": f"c{n}", "score": n}) for n in range(20)))
            assert await customers.count({"score": {"$gte": 10}}) == 10
            one, other = await customers.get("c1"), await customers.get("c1")
            await customers.save(one | {"name": "One"})
            with pytest.raises(Conflict):
                await customers.save(other | {"name": "Other"})
            increments = (customers.update("c1", {"$inc": {"score": 1}}) for _ in range(20))
            await asyncio.gather(*increments)
            assert (await customers.get("c1"))["score"] == 21
            rows = [row async for batch in customers.find_batches(batch_size=7) for row in batch]
            assert len(rows) == 20
        with pytest.raises(Invalid, match="the session is closed"):
            await customers.count()
        await db.aclose()
        with pytest.raises(Invalid, match="threads"):
            worm.aconnect(str(tmp_path), threads=0)

    asyncio.run(main())


def test_the_loop_is_never_blocked(tmp_path: Path) -> None:
    loops: set[str] = set()

    async def main() -> None:
        db = await worm.aconnect(str(tmp_path), schema=schema())
        get = db.sync.store.get

        def watched(*args: object, **kwargs: object) -> object:
            loops.add(threading.current_thread().name)
            return get(*args, **kwargs)  # type: ignore[arg-type]

        db.sync.store.get = watched  # type: ignore[method-assign,assignment]
        customers = db.model("Customer")
        await customers.insert({"id": "a"})
        await customers.patch("a", {"name": "x"})
        await db.aclose()

    asyncio.run(main())
    assert loops
    assert all(name != threading.main_thread().name for name in loops)


def test_a_cancelled_write_is_done_or_not_begun(tmp_path: Path) -> None:
    """One thread: of several changes that wait for it, those that are cancelled in the queue never happen."""

    async def main() -> None:
        async with worm.aconnect(str(tmp_path), schema=schema(), threads=1) as db:
            customers = db.model("Customer")
            await customers.insert({"id": "a", "score": 0})
            began, cancelled = threading.Event(), threading.Event()

            def slow(document: DocumentDict) -> DocumentDict:
                began.set()
                assert cancelled.wait(20)
                return document | {"score": 1}

            first = asyncio.create_task(customers.modify("a", slow))
            second = asyncio.create_task(customers.update("a", {"$inc": {"score": 100}}))
            while not began.is_set():
                await asyncio.sleep(0.001)
            first.cancel()
            second.cancel()
            await asyncio.wait({first, second})  # the queue knows of it before the thread takes the next one
            cancelled.set()
            assert first.cancelled()
            assert second.cancelled()
        found = worm.connect(str(tmp_path), schema=schema()).model("Customer")
        assert found.get("a")["score"] == 1
        assert [entry.op for entry in found.get_history("a")] == ["create", "update"]

    asyncio.run(main())
