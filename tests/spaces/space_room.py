"""Where the spaces of tests are: every backend has a line in `URLS`, and passes all tests with the fixture `room`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from worm.clock import VirtualClock
from worm.formats.strict_json import JsonObject, JsonValue
from worm.spaces.backend import Backend, Turn
from worm.spaces.opening import open_backend
from worm.spaces.operations import SpaceConfig
from worm.spaces.space import Space

URLS = {
    "sqlite": "sqlite://{directory}",
    "pages": "memory://{directory}",
}
ON_DISK = URLS | {"pages": "{directory}/store"}


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Room:
    """One space that can be opened as often as a test wants."""

    kind: str
    directory: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    opened: list[Space] = field(default_factory=list)
    is_shared: bool = False
    """Other processes see it, with the machine's clock."""

    @property
    def url(self) -> str:
        chosen = ON_DISK if self.is_shared else URLS
        return chosen[self.kind].format(directory=self.directory)

    def backend(self) -> Backend:
        return open_backend(self.url, "main", clock=None if self.is_shared else self.clock)

    def open(self, **settings: Any) -> Space:
        return self.space(self.backend(), **settings)

    def space(self, backend: Backend, **settings: Any) -> Space:
        clock = None if self.is_shared else self.clock
        space = Space(backend, SpaceConfig(**settings), clock=clock)
        self.opened.append(space)
        return space

    def close(self) -> None:
        for space in self.opened:
            space.close()
        self.opened.clear()


class DyingBackend:
    """Dies in its turn number `turn` from now: before what was written counts, or right after."""

    def __init__(self, backend: Backend, *, turn: int = 1, is_written: bool) -> None:
        self._backend = backend
        self._left = turn
        self._is_written = is_written

    @classmethod
    def of(cls, backend: Backend, *, turn: int = 1, is_written: bool) -> Backend:
        return cast(Backend, cls(backend, turn=turn, is_written=is_written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        self._left -= 1
        with self._backend.turn() as turn:
            yield turn
            if self._left == 0 and not self._is_written:
                raise Killed
        if self._left == 0:
            raise Killed


def put(id: str, **fields: JsonValue) -> JsonObject:
    """A `set` of a document with these fields in its value."""
    return {"op": "set", "id": id, "value": {"value": dict(fields)}}


def change(id: str, **fields: JsonValue) -> JsonObject:
    """A `patch` that adds these fields to the value."""
    patches: list[JsonValue] = [{"op": "add", "path": f"/value/{name}", "value": one} for name, one in fields.items()]
    return {"op": "patch", "id": id, "patches": patches}


def drop(id: str) -> JsonObject:
    return {"op": "delete", "id": id}


def value(space: Space, id: str, **at: Any) -> JsonValue:
    """The value of a document; None where there is none."""
    found = space.read(id, **at).value
    return None if found is None else found["value"]


def seqs(space: Space) -> Sequence[int]:
    return [entry.seq for entry in space.log()]
