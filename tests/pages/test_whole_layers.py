"""Small layers come with one request, whole, and are checked before anything is taken from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.conftest import WHOLE_BYTES
from tests.pages.page_room import Room, flipped
from worm.errors import Corrupt
from worm.pages import layers
from worm.pages.cache import BlockCache

PAGES = [f"p{number:02d}" for number in range(20)]


@pytest.fixture(autouse=True)
def small_layers(large_layers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "WHOLE_BYTES", WHOLE_BYTES)


def test_a_cold_read_is_one_request_for_all_pages_of_a_small_layer() -> None:
    room = Room()
    (written,) = room.grow(room.db(), PAGES, 1).values()
    reader = room.reader()
    with room.memory.requests.measure() as requests:
        assert [reader.get_page(page) for page in PAGES] == [written[page] for page in PAGES]
    assert requests == {"GET": 1, "total": 1}


def test_a_layer_over_the_limit_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    (written,) = room.grow(room.db(), PAGES, 1).values()
    (layer,) = room.reader().pages.branch("main").layers
    for limit, spent in ((layer.size, 1), (layer.size - 1, 2)):
        monkeypatch.setattr(layers, "WHOLE_BYTES", limit)
        reader = room.reader()
        with room.memory.requests.measure() as requests:
            assert reader.get_page("p07") == written["p07"]
        assert requests["total"] == spent


def test_damage_is_told_and_not_kept() -> None:
    room = Room()
    (written,) = room.grow(room.db(), PAGES, 1).values()
    reader = room.reader()
    (layer,) = reader.pages.branch("main").layers
    key = f"db/{reader.keys.db_id}/{layer.path}"
    for at in (layer.index, layer.size - 1):
        room.spoil(key, flipped(at))
        with pytest.raises(Corrupt, match="byte"):
            reader.get_page("p07")
        room.spoil(key, flipped(at))
    assert reader.get_page("p07") == written["p07"]


def test_files_of_a_cache_have_pieces_only(tmp_path: Path) -> None:
    body = b"whole"
    cache = BlockCache(1000, disk=tmp_path, disk_bytes=1000)
    assert cache.whole("k", lambda: body).body == body
    assert list(tmp_path.iterdir()) == []
    cache.clear()
    assert cache.whole("k", lambda: b"again").body == b"again"
