"""Sessions that are open when their process forks: the child works by itself, and the parent goes on."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

import worm
from tests.emulators import new_bucket
from tests.forked import FORK, SECONDS, busy_threads, in_forked_child
from tests.harness import schema_of
from worm.errors import Fenced, Invalid
from worm.forks import importing, new_lock, new_rlock
from worm.log.group import GroupCommit
from worm.log.journal.store import LogStore
from worm.log.writer import LogWriter
from worm.pages.cache import BlockCache
from worm.sdk.aio import AsyncWorm, aconnect
from worm.sdk.database import Model
from worm.sdk.document import DocumentDict
from worm.store.file import FileStore
from worm.store.s3 import ObstoreSide, S3Store
from worm.store.s3_boto import BotoSide
from worm.tables.table import Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("aws_environment"),
]
FORKS = 3
PLACES = ["directory", "memory", "moto"]


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place = str(request.param)
    if place == "directory":
        return str(tmp_path / "data")
    if place == "memory":
        return f"memory://{request.node.name}"
    endpoint = str(request.getfixturevalue("moto_endpoint"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return f"s3://{new_bucket(endpoint, versioned=True)}"


def _used(url: str, space: str | None = None) -> Model[DocumentDict]:
    """A model of a session that has read and written."""
    schema = schema_of() if space is None else schema_of(space=space)
    session = worm.connect(
        url, schema=schema, maintenance="inline", probe=False
    )  # moto's answers to a race are not reliable
    model = session.model("Customer")
    model.insert({"id": "a", "name": "before", "status": "lead"})
    assert [row["name"] for row in model.find_all(filter={"status": "lead"})] == ["before"]
    return model


def busy(model: Model[DocumentDict], pause: float, threads: int = 3) -> AbstractContextManager[None]:
    """Other threads read, write and query meanwhile."""

    def work(number: int, count: int) -> None:
        model.upsert({"id": f"busy-{number}", "name": str(count), "status": "active"})
        model.get("a")
        model.find_all(filter={"status": "active"})

    return busy_threads(work, threads, pause)


def _work_in_child(model: Model[DocumentDict], name: str) -> tuple[str, list[str]]:
    found = model.get("a")
    model.insert({"id": name, "name": name, "status": "lead"})
    return str(found["name"]), sorted(str(row["id"]) for row in model.find_all(filter={"status": "lead"}))


def test_a_session_that_was_used_works_in_a_forked_child_and_in_its_parent(url: str) -> None:
    """obstore waits for ever in a child; with a directory it was the models in spaces that did."""
    model = _used(url)
    assert in_forked_child(lambda: _work_in_child(model, "child")) == ("before", ["a", "child"])
    model.insert({"id": "b", "name": "after", "status": "lead"})
    written = {"a", "b"} if url.startswith("memory:") else {"a", "b", "child"}  # memory is that of a process
    assert {row["id"] for row in model.find_all(filter={"status": "lead"})} == written


def test_a_model_in_a_space_works_in_a_forked_child_and_in_its_parent(url: str) -> None:
    """The child would commit under the names of its parent's transactions, which count as done."""
    model = _used(url, space="main")
    assert in_forked_child(lambda: _work_in_child(model, "child")) == ("before", ["a", "child"])
    model.insert({"id": "b", "name": "after", "status": "lead"})
    if not url.startswith("memory:"):
        assert model.get("child")["name"] == "child"
    assert model.get("b")["name"] == "after"


@pytest.mark.parametrize("space", [None, "main"])
def test_a_child_works_whatever_other_threads_of_its_parent_were_doing(url: str, space: str | None) -> None:
    """Locks that these threads held would be locked for ever in the child."""
    model = _used(url, space)
    with busy(model, 0.0 if space is None else 0.1):  # writers of a space take over from each other
        for number in range(FORKS):
            name, ids = in_forked_child(partial(_work_in_child, model, f"child-{number}"), 3 * SECONDS)
            assert (name, f"child-{number}" in ids) == ("before", True)
            time.sleep(0.02 * number)
    if not url.startswith("memory:"):
        assert [model.get(f"child-{number}")["name"] for number in range(FORKS)] == [f"child-{n}" for n in range(FORKS)]


_models: list[Model[DocumentDict]] = []


def _save_by_pool(number: int) -> str:
    _models[-1].insert({"id": f"pool-{number}", "name": str(number), "status": "active"})
    return str(_models[-1].get(f"pool-{number}")["name"])


def test_a_pool_of_forked_processes_shares_a_session(url: str) -> None:
    _models.append(_used(url))
    with FORK.Pool(2) as pool:
        assert pool.map_async(_save_by_pool, range(6)).get(SECONDS) == [str(number) for number in range(6)]
    if not url.startswith("memory:"):
        found = _models[-1].find_all(filter={"status": "active"})
        assert sorted(str(row["id"]) for row in found) == [f"pool-{number}" for number in range(6)]


def test_ids_that_parent_and_children_draw_differ(tmp_path: Path) -> None:
    """Equal put ids would make one process take the other's write for its own."""
    session = worm.connect(str(tmp_path), schema=schema_of())

    def drawn() -> list[str]:
        return [session.ids.ulid(), session.ids.uuid(), str(session.ids.jitter(1.0))]

    session.ids.ulid()  # from here on there are random bits at hand
    texts = [*in_forked_child(drawn), *in_forked_child(drawn), *drawn()]
    assert len(set(texts)) == len(texts)


def test_a_child_of_a_process_with_obstore_uses_boto3(moto_endpoint: str) -> None:
    store = S3Store(new_bucket(moto_endpoint), endpoint_url=moto_endpoint)
    opened = in_forked_child(
        lambda: (
            type(store._objects),
            type(S3Store("other", endpoint_url=moto_endpoint)._objects),
            in_forked_child(lambda: type(store._objects)),
        )
    )
    assert (opened, type(store._objects)) == ((BotoSide, BotoSide, BotoSide), ObstoreSide)


def test_a_child_makes_connections_of_its_own(moto_endpoint: str) -> None:
    """Two processes would read the answers to each other's requests."""
    store = S3Store(new_bucket(moto_endpoint), endpoint_url=moto_endpoint)
    client = store._boto.client
    assert in_forked_child(lambda: store._boto.client is not client)
    assert store._boto.client is client


def test_an_async_session_works_in_a_forked_child(url: str) -> None:
    session = asyncio.run(_aused(url))

    def child() -> str:
        async def work() -> str:
            model = session.model("Customer")
            await model.insert({"id": "child", "name": "child", "status": "lead"})
            return str((await model.get("child"))["name"])

        return asyncio.run(work())

    assert in_forked_child(child) == "child"


async def _aused(url: str) -> AsyncWorm:
    session = await aconnect(url, schema=schema_of())
    await session.model("Customer").insert({"id": "a", "name": "before", "status": "lead"})
    return session


def test_a_journal_is_refused_in_a_child_which_does_not_keep_its_lock(tmp_path: Path) -> None:
    """A copy of the handle would keep the lock of a store that its process has closed."""
    store = LogStore.open(tmp_path / "log")
    store.insert("c", {"_id": 1})
    for use in (lambda: store.get("c", 1), lambda: store.insert("c", {"_id": 2})):
        with pytest.raises(Invalid, match="was opened by process"):
            in_forked_child(use)
    going_on = FORK.Event()
    child = FORK.Process(target=going_on.wait, args=(SECONDS,))
    child.start()
    try:
        store.close()
        LogStore.open(tmp_path / "log").close()
    finally:
        going_on.set()
        child.join()


@contextmanager
def held_by_another_thread(held: AbstractContextManager[object]) -> Iterator[None]:
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with held:
            begun.set()
            ended.wait(2 * SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(SECONDS)
    try:
        yield
    finally:
        ended.set()
        holder.join()


@pytest.mark.parametrize("make", [new_lock, new_rlock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(
    make: Callable[[], threading.Lock | threading.RLock],
) -> None:
    lock = make()
    with held_by_another_thread(lock):
        assert in_forked_child(lambda: lock.acquire(timeout=1.0))
        assert not lock.acquire(timeout=0.01)


def test_a_fork_waits_for_an_import_of_a_client_library(tmp_path: Path) -> None:
    """The child could never import what another thread was importing."""
    with held_by_another_thread(importing):
        forking = threading.Thread(target=in_forked_child, args=(os.getpid,))
        forking.start()
        forking.join(0.1)
        waited = forking.is_alive()
    forking.join(SECONDS)
    assert (waited, forking.is_alive()) == (True, False)


def test_a_property_that_another_thread_computes_is_computed_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 all instances share one lock, held meanwhile."""
    table = worm.connect(str(tmp_path), schema=schema_of()).model("Customer").table
    if sys.version_info >= (3, 12):
        pytest.skip("a cached_property has no lock")
    with held_by_another_thread(vars(vars(Table)["manifest"])["lock"]):
        assert in_forked_child(lambda: table.manifest.key).endswith(".worm.manifest.json")


def test_threads_of_a_session_are_those_of_its_process(tmp_path: Path) -> None:
    session = worm.connect(str(tmp_path), schema=schema_of())
    assert session.in_parallel(str, [1, 2]) == ["1", "2"]
    assert in_forked_child(lambda: session.in_parallel(str, [1, 2])) == ["1", "2"]


def test_a_block_that_another_thread_loads_is_loaded_by_a_child_itself() -> None:
    cache = BlockCache(1 << 20)
    begun, ended = threading.Event(), threading.Event()

    def slow() -> bytes:
        begun.set()
        ended.wait(2 * SECONDS)
        return b"parent"

    loader = threading.Thread(target=cache.whole, args=("key", slow))
    loader.start()
    begun.wait(SECONDS)
    try:
        assert in_forked_child(lambda: cache.whole("key", lambda: b"child").body) == b"child"
    finally:
        ended.set()
        loader.join()


def test_commits_that_wait_in_the_parent_are_not_made_by_a_child(tmp_path: Path) -> None:
    """The queue of group commit is copied, and its thread is not: a commit of the child would wait for it."""
    store = FileStore(tmp_path, durability="process")
    group = GroupCommit(LogWriter.open(store, "main"))
    group._is_awake = True  # as it is while the thread writes
    with pytest.raises(Fenced, match="belongs to the parent process"):
        in_forked_child(lambda: group.submit([{"a": 1}]).result(5))


def test_the_lock_of_a_journal_ends_with_its_process_although_a_child_lives_on(tmp_path: Path) -> None:
    with orphan_of(lambda: [LogStore.open(tmp_path / "log")]):
        LogStore.open(tmp_path / "log").close()


def test_the_lock_of_a_document_ends_with_its_process_although_a_child_lives_on(tmp_path: Path) -> None:
    """Nobody could write a document of this stripe until the child ends."""
    store = FileStore(tmp_path, durability="process")
    store.put("doc", b"1")

    def held() -> list[object]:
        entered = store._disk.stripes.held(["doc"])
        entered.__enter__()
        return [entered]

    with orphan_of(held):
        assert in_forked_child(lambda: store.put("doc", b"2") is not None)


@contextmanager
def orphan_of(work: Callable[[], list[object]]) -> Iterator[None]:
    """A child whose parent has done the work and was killed then."""
    begun, ended = FORK.Event(), FORK.Event()

    def parent() -> None:
        kept = work()
        if os.fork() == 0:
            begun.set()
            ended.wait(2 * SECONDS)
        os._exit(len(kept) - 1)

    killed = FORK.Process(target=parent)
    killed.start()
    killed.join(SECONDS)
    assert begun.wait(SECONDS)
    try:
        yield
    finally:
        ended.set()


@pytest.mark.parametrize("space", [None, "main"])
def test_what_a_child_saves_is_in_its_tables_when_it_closes_its_session(tmp_path: Path, space: str | None) -> None:
    """`close` folded nothing, took the note away and reported success: every later query lacked the documents."""
    url, schema = str(tmp_path / "data"), schema_of() if space is None else schema_of(space=space)
    session = worm.connect(url, schema=schema, maintenance="background")
    model = session.model("Customer")
    model.insert({"id": "a", "name": "A"})

    def work() -> list[str]:
        model.insert({"id": "child", "name": "C"})
        session.close()
        return sorted(str(row["id"]) for row in model.find_all())

    assert in_forked_child(work) == ["a", "child"]
    session.close()
    with worm.connect(url, schema=schema) as later:
        assert sorted(str(row["id"]) for row in later.model("Customer").find_all()) == ["a", "child"]
        assert [one for report in later.verify() for one in report.differences] == []
