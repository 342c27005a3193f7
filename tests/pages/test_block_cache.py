"""The cache of blocks and indexes: what is kept, what is loaded once, and that its disk can only help."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from worm.errors import Corrupt, Unavailable
from worm.pages.cache import BlockCache
from worm.pages.layer_file import Block, BlockRef, BuiltLayer, LayerIndex, PageVersion, build_layers

CHANCE = Random(7)
(LAYER,) = build_layers(
    [PageVersion(f"p{number:03d}", 1, CHANCE.randbytes(100)) for number in range(40)],
    target_bytes=1 << 20,
    block_bytes=256,
    bits_per_key=10,
)
KEY = "db/main/pages/x.layer"
INDEX = LayerIndex.decode(LAYER.body[LAYER.index_offset :], KEY)
REFS = list(INDEX.blocks)
SIZE = Block.decode(LAYER.body[: REFS[0].length], KEY, 0).size


class Source:
    """The layer in a store that counts what is read of it."""

    def __init__(self, layer: BuiltLayer = LAYER) -> None:
        self.layer = layer
        self.loads: list[int] = []

    def load(self, ref: BlockRef) -> Callable[[], bytes]:
        return self._reading(ref.offset, ref.offset + ref.length)

    def load_index(self) -> bytes:
        return self._reading(self.layer.index_offset, len(self.layer.body))()

    def _reading(self, start: int, end: int) -> Callable[[], bytes]:
        def load() -> bytes:
            self.loads.append(start)
            return self.layer.body[start:end]

        return load

    def read(self, cache: BlockCache, ref: BlockRef, key: str = KEY) -> PageVersion | None:
        return cache.block(key, ref.offset, self.load(ref)).find(ref.page, ref.lsn)


def due(ref: BlockRef) -> PageVersion | None:
    return Block.decode(LAYER.body[ref.offset : ref.offset + ref.length], KEY, ref.offset).find(ref.page, ref.lsn)


def counts(cache: BlockCache) -> tuple[int, int, int]:
    return cache.hits, cache.disk_hits, cache.misses


@pytest.fixture
def source() -> Source:
    return Source()


# Memory


def test_an_index_and_a_block_are_loaded_once_and_then_the_same(source: Source) -> None:
    cache = BlockCache(1 << 20)
    index = cache.index(KEY, source.load_index)
    block = cache.block(KEY, 0, source.load(REFS[0]))
    assert cache.index(KEY, source.load_index) is index
    assert cache.block(KEY, 0, source.load(REFS[0])) is block
    assert source.loads == [LAYER.index_offset, 0]
    assert counts(cache) == (2, 0, 2)
    assert cache.memory_used == index.size + block.size
    assert list(index.blocks) == REFS


def test_blocks_of_other_layers_and_places_are_others(source: Source) -> None:
    cache = BlockCache(1 << 20)
    assert [source.read(cache, ref) for ref in REFS] == [due(ref) for ref in REFS]
    assert source.read(cache, REFS[0], "another") == due(REFS[0])
    assert counts(cache) == (0, 0, len(REFS) + 1)


def test_what_was_used_longest_ago_goes_first_and_the_limit_holds(source: Source) -> None:
    cache = BlockCache(3 * SIZE + SIZE // 2)
    for at in (0, 1, 2, 0, 3):
        source.read(cache, REFS[at])
    assert cache.memory_used <= 3 * SIZE + SIZE // 2
    source.loads.clear()
    for at in (0, 2, 3):
        source.read(cache, REFS[at])
    assert source.loads == []
    source.read(cache, REFS[1])
    assert source.loads == [REFS[1].offset]


def test_an_item_over_the_limit_is_handed_out_and_throws_nothing_out(source: Source) -> None:
    cache = BlockCache(SIZE)
    source.read(cache, REFS[0])
    assert list(cache.index(KEY, source.load_index).blocks) == REFS
    assert cache.memory_used == SIZE
    source.read(cache, REFS[0])
    assert counts(cache) == (1, 0, 2)
    nothing = BlockCache(0)
    assert [source.read(nothing, REFS[0]) for _ in range(2)] == [due(REFS[0])] * 2
    assert (counts(nothing), nothing.memory_used) == ((0, 0, 2), 0)


def test_clear_forgets_everything_in_memory(source: Source) -> None:
    cache = BlockCache(1 << 20)
    source.read(cache, REFS[0])
    cache.clear()
    assert cache.memory_used == 0
    source.read(cache, REFS[0])
    assert source.loads == [0, 0]
    assert cache.memory_used == SIZE


# Several threads


class Held:
    """A load that goes on when it is told to, after as many threads as wanted have asked."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.calls = 0
        self._answer = answer

    def __call__(self) -> bytes:
        self.calls += 1
        self.began.set()
        assert self.go.wait(10)
        return self._answer()


def ask_together(cache: BlockCache, load: Held, threads: int) -> list[Block | BaseException]:
    """All ask for one block: the first loads, the others wait for it."""
    ended: list[Block | BaseException] = []

    def ask() -> None:
        try:
            ended.append(cache.block(KEY, 0, load))
        except BaseException as error:  # noqa: BLE001 - what every thread got is what the test is about
            ended.append(error)

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(threads)]
    asking[0].start()
    assert load.began.wait(10)
    under_way: Any = cache._loads[KEY, 0]
    waiting, wait = threading.Semaphore(0), under_way.ended.wait

    def noticed() -> None:
        waiting.release()
        wait()

    under_way.ended.wait = noticed
    for thread in asking[1:]:
        thread.start()
        assert waiting.acquire(timeout=30)
    load.go.set()
    for thread in asking:
        thread.join(30)
        assert not thread.is_alive()
    return ended


def test_threads_that_miss_together_load_once(source: Source) -> None:
    cache = BlockCache(1 << 20)
    load = Held(source.load(REFS[0]))
    ended = ask_together(cache, load, 8)
    assert (load.calls, len(ended), len({id(one) for one in ended})) == (1, 8, 1)
    assert counts(cache) == (7, 0, 1)


def test_what_is_too_large_to_keep_is_loaded_once_for_those_who_wait(source: Source) -> None:
    cache = BlockCache(1)
    load = Held(source.load(REFS[0]))
    ended = ask_together(cache, load, 4)
    assert (load.calls, len({id(one) for one in ended}), cache.memory_used) == (1, 1, 0)


def test_a_load_of_one_block_does_not_keep_others_waiting(source: Source) -> None:
    cache = BlockCache(1 << 20)
    load = Held(source.load(REFS[0]))
    thread = threading.Thread(target=lambda: cache.block(KEY, 0, load), daemon=True)
    thread.start()
    assert load.began.wait(10)
    assert source.read(cache, REFS[1]) == due(REFS[1])
    load.go.set()
    thread.join(10)


def test_an_error_is_shared_by_those_who_wait_and_not_kept(source: Source) -> None:
    cache = BlockCache(1 << 20)

    def fail() -> bytes:
        raise Unavailable("no answer", key=KEY)

    load = Held(fail)
    ended = ask_together(cache, load, 4)
    assert (load.calls, [type(one) for one in ended]) == (1, [Unavailable] * 4)
    assert source.read(cache, REFS[0]) == due(REFS[0])
    with pytest.raises(Corrupt, match="block at byte 0"):
        BlockCache(1 << 20).block(KEY, 0, lambda: b"not a block")


def test_who_waits_for_a_thread_that_is_stopped_loads_itself(source: Source) -> None:
    cache = BlockCache(1 << 20)
    tried: list[int] = []

    def stopped_once() -> bytes:
        tried.append(1)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return source.load(REFS[0])()

    ended = ask_together(cache, Held(stopped_once), 3)
    assert sorted(type(one).__name__ for one in ended) == ["Block", "Block", "KeyboardInterrupt"]
    assert len(tried) == 2


def test_many_threads_on_a_small_cache_get_what_is_stored(source: Source, tmp_path: Path) -> None:
    cache = BlockCache(4 * SIZE, disk=tmp_path / "cache", disk_bytes=8 * REFS[0].length)

    def work(seed: int) -> bool:
        refs = [REFS[(seed * 7 + step * (seed + 1)) % len(REFS)] for step in range(60)]
        return all(source.read(cache, ref) == due(ref) for ref in refs)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert cache.memory_used <= 4 * SIZE
    assert sum(counts(cache)) == 8 * 60
    assert cache._loads == {}


# The disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a" / "cache"


def disk_cache(folder: Path, limit: int = 1 << 20) -> BlockCache:
    return BlockCache(1 << 20, disk=folder, disk_bytes=limit)


def test_the_next_process_finds_blocks_and_indexes_on_the_disk(source: Source, folder: Path) -> None:
    first = disk_cache(folder)
    first.index(KEY, source.load_index)
    source.read(first, REFS[0])
    source.loads.clear()
    second = disk_cache(folder)
    assert list(second.index(KEY, source.load_index).blocks) == REFS
    assert [source.read(second, REFS[0]) for _ in range(2)] == [due(REFS[0])] * 2
    assert source.loads == []
    assert counts(second) == (1, 2, 0)
    second.clear()
    source.read(second, REFS[0])
    assert counts(second) == (1, 3, 0)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_a_miss_and_replaced(source: Source, folder: Path, damage: str) -> None:
    source.read(disk_cache(folder), REFS[0])
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    flipped = bytes([*whole[:9], whole[9] ^ 4, *whole[10:]])
    file.write_bytes({"flip": flipped, "cut": whole[:-1], "empty": b"", "other": b"x" * len(whole)}[damage])
    source.loads.clear()
    second = disk_cache(folder)
    assert source.read(second, REFS[0]) == due(REFS[0])
    assert (source.loads, counts(second)) == ([0], (0, 0, 1))
    assert [one.read_bytes() for one in folder.iterdir()] == [whole]


def test_a_damaged_file_is_removed_also_where_the_store_does_not_answer(source: Source, folder: Path) -> None:
    source.read(disk_cache(folder), REFS[0])
    (file,) = folder.iterdir()
    file.write_bytes(b"damaged")

    def fail() -> bytes:
        raise Unavailable("no answer", key=KEY)

    with pytest.raises(Unavailable):
        disk_cache(folder).block(KEY, 0, fail)
    assert list(folder.iterdir()) == []


def test_what_the_store_has_damaged_is_never_put_on_the_disk(folder: Path) -> None:
    with pytest.raises(Corrupt):
        disk_cache(folder).block(KEY, 0, lambda: b"not a block")
    assert not folder.exists()


def test_files_used_longest_ago_go_first_and_the_limit_holds(source: Source, folder: Path) -> None:
    limit = sum(ref.length for ref in REFS[:8])
    for at, ref in enumerate(REFS[:8]):
        cache = disk_cache(folder, limit)
        before = set(folder.iterdir()) if folder.exists() else set()
        source.read(cache, ref)
        (new,) = set(folder.iterdir()) - before
        os.utime(new, (at + 1, at + 1))
    source.loads.clear()
    source.read(disk_cache(folder, limit), REFS[0])  # used now
    assert source.loads == []
    source.read(disk_cache(folder, limit), REFS[8])
    assert sum(file.stat().st_size for file in folder.iterdir()) <= limit
    source.loads.clear()
    source.read(disk_cache(folder, limit), REFS[0])
    source.read(disk_cache(folder, limit), REFS[7])
    assert source.loads == []
    source.read(BlockCache(0, disk=folder, disk_bytes=limit), REFS[1])
    assert source.loads == [REFS[1].offset]


def test_one_process_never_has_more_on_the_disk_than_it_may(source: Source, folder: Path) -> None:
    limit = 5 * REFS[0].length
    cache = BlockCache(0, disk=folder, disk_bytes=limit)
    for ref in REFS:
        source.read(cache, ref)
        assert sum(file.stat().st_size for file in folder.iterdir()) <= limit
    assert len(list(folder.iterdir())) >= 3
    large = BlockCache(0, disk=folder, disk_bytes=10)
    before = sorted(folder.iterdir())
    source.read(large, REFS[0])
    assert sorted(folder.iterdir()) == before


def test_what_others_added_is_seen_in_time(source: Source, folder: Path) -> None:
    limit = 16 * REFS[0].length
    caches = [BlockCache(0, disk=folder, disk_bytes=limit) for _ in range(4)]
    for round_ in range(12):
        for number, cache in enumerate(caches):
            for ref in REFS[:3]:
                source.read(cache, ref, f"{KEY}-{number}-{round_}")
                used = sum(file.stat().st_size for file in folder.iterdir())
                assert used <= limit + 4 * (limit // 8 + REFS[0].length)


def test_caches_that_share_a_directory_do_not_disturb_each_other(source: Source, folder: Path) -> None:
    caches = [BlockCache(0, disk=folder, disk_bytes=4 * REFS[0].length) for _ in range(4)]

    def work(cache: BlockCache) -> bool:
        return all(source.read(cache, ref) == due(ref) for _ in range(6) for ref in REFS)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, caches))
    assert not list(folder.glob("*.unfinished"))


def test_files_of_others_in_the_directory_are_left_alone(source: Source, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_bytes(bytes(10_000))
    (folder / "sub.piece").mkdir()
    os.utime(folder / "notes.txt", (1, 1))
    leftover = folder / "worm-dead.unfinished"
    leftover.write_bytes(bytes(1000))
    os.utime(leftover, (1, 1))
    cache = BlockCache(0, disk=folder, disk_bytes=3 * REFS[0].length)
    for ref in REFS:
        source.read(cache, ref)
    assert (folder / "notes.txt").stat().st_size == 10_000
    assert (folder / "sub.piece").is_dir()
    assert not leftover.exists()


def test_a_place_that_is_no_directory_never_fails_a_read(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/worm-cache")):
        cache = BlockCache(0, disk=place, disk_bytes=1 << 20)
        assert [source.read(cache, ref) for ref in REFS[:3]] == [due(ref) for ref in REFS[:3]]
        assert counts(cache) == (0, 0, 3)


@pytest.mark.parametrize("call", ["fdopen", "utime", "scandir"])
def test_a_disk_that_fails_never_fails_a_read(
    source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    source.read(disk_cache(folder), REFS[0])

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC if call == "fdopen" else errno.EROFS, "injected")

    monkeypatch.setattr(f"worm.pages.cache.os.{call}", fail)
    cache = disk_cache(folder)
    assert [source.read(cache, ref) for ref in REFS[:2]] == [due(ref) for ref in REFS[:2]]
    monkeypatch.undo()
    assert not list(folder.glob("*.unfinished"))
    assert counts(cache) == (0, 1, 1)


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_files_that_cannot_be_moved_or_removed_never_fail_a_read(
    source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    limit = 2 * REFS[0].length
    source.read(disk_cache(folder, limit), REFS[0])
    (file,) = folder.iterdir()
    file.write_bytes(b"damaged")

    def fail(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "injected")

    monkeypatch.setattr(f"worm.pages.cache.Path.{call}", fail)
    cache = disk_cache(folder, limit)
    assert [source.read(cache, ref) for ref in REFS[:6]] == [due(ref) for ref in REFS[:6]]
    assert counts(cache) == (0, 0, 6)
    assert [one.name for one in folder.iterdir() if call == "replace"] == [], "a file appears whole, by its rename"


def test_without_bytes_for_it_there_is_no_disk(source: Source, folder: Path) -> None:
    source.read(BlockCache(1 << 20, disk=folder), REFS[0])
    assert not folder.exists()


def test_the_blocks_of_the_sample_are_of_one_length() -> None:
    """The limits in these tests count on it."""
    assert {ref.length for ref in REFS} == {REFS[0].length}
    assert all(ref.offset < after.offset for ref, after in pairwise(REFS))
