"""The rooms of every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spaces.space_room import URLS, Room
from worm.spaces.space import Space


@pytest.fixture(params=sorted(URLS))
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    room = Room(request.param, tmp_path)
    yield room
    room.close()


@pytest.fixture
def space(room: Room) -> Space:
    return room.open()
