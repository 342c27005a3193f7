"""Opens the space of a URL: `sqlite:///directory`, with a database for every space in it, or `sqlite:///file.sqlite`.
Any other URL is that of a store (`s3://bucket/prefix`, a path, `memory://name`), with a page store for every space."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Denied, Invalid, NotFound, show
from worm.formats import path_name_problem
from worm.store import Store, open_store, split_url

if TYPE_CHECKING:  # every worker imports this module, but few of them ever open a space
    from worm.spaces.backend import Backend
    from worm.spaces.operations import SpaceConfig
    from worm.spaces.space import Space

SUFFIX = ".sqlite"
PREFIX = "space-"


def open_space(
    url: str,
    name: str,
    *,
    config: SpaceConfig | None = None,
    create: bool = True,
    endpoint_url: str | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Space:
    """Open a space, and create it if it does not exist; with `create=False`, that is `NotFound`.

    Examples:
        >>> with worm.open_space("memory://new", "main") as space:
        ...     space.seq
        0
    """
    from worm.spaces.space import Space, checked_config

    checked_config(config)  # before anything is created
    backend = open_backend(url, name, create=create, endpoint_url=endpoint_url, clock=clock, ids=ids)
    return Space(backend, config, clock=clock, ids=ids)


def database_path(url: str, name: str) -> Path:
    """The path of a space's database."""
    problem = path_name_problem(name)
    if problem:
        raise Invalid(f"the space name {show(name)} {problem}")
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or "?" in url or "#" in url:
        raise Invalid(f"{show(url)} has no path", hint="write sqlite:///absolute/path")
    path = Path(unquote(parts.path))
    return path if path.suffix == SUFFIX else path / f"{name}{SUFFIX}"


def open_backend(
    url: str,
    name: str,
    *,
    create: bool = True,
    endpoint_url: str | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Backend:
    """Only the backend. The engine is imported only for the URL that needs it."""
    _check(url, name, create, endpoint_url, clock, ids)
    clock = clock or SystemClock()
    if split_url(url).scheme == "sqlite":
        from worm.spaces.sqlite_backend import SqliteBackend

        path = database_path(url, name)
        if create:
            _make_directory(path.parent)
        return SqliteBackend(path, create=create, clock=clock)
    from worm.spaces.page_backend import PageBackend

    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, clock=clock, ids=ids)
    return PageBackend(store, database_id(name), create=create, clock=clock, ids=ids)


def list_spaces(url: str, *, endpoint_url: str | None = None, clock: Clock | None = None) -> list[str]:
    """The names of all spaces at a URL, sorted."""
    _check(url, "", True, endpoint_url, clock, None)
    if split_url(url).scheme == "sqlite":
        path = database_path(url, "x")
        if path.name != f"x{SUFFIX}":
            return [path.stem] if path.is_file() else []
        return sorted(one.stem for one in path.parent.glob(f"*{SUFFIX}") if not path_name_problem(one.stem))
    from worm.log import databases

    clock = clock or SystemClock()
    store = open_store(url, endpoint_url=endpoint_url, clock=clock, ids=Ids.system(clock))
    return sorted(name.removeprefix(PREFIX) for name in databases(store) if name.startswith(PREFIX))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Denied(f"the directory cannot be created: {error.strerror}", key=str(path)) from error


def _check(url: object, name: object, create: object, endpoint_url: object, clock: object, ids: object) -> None:
    """Raise `Invalid` for arguments of a wrong type."""
    for what, value in (("url", url), ("the name of a space", name), ("endpoint_url", endpoint_url)):
        if not isinstance(value, str) and not (what == "endpoint_url" and value is None):
            raise Invalid(f"{what} must be a string, not {show(value)}")
    if type(create) is not bool:
        raise Invalid(f"create must be true or false, not {show(create)}")
    if clock is not None and not all(callable(getattr(clock, verb, None)) for verb in ("now", "monotonic", "sleep")):
        raise Invalid(f"clock must be a Clock, not {show(clock)}")
    if ids is not None and not isinstance(ids, Ids):
        raise Invalid(f"ids must be an Ids, not {show(ids)}")


def space_on(store: Store, name: str, *, create: bool, clock: Clock, ids: Ids) -> Space:
    """The space in the page store beside the documents of an open store; with `create=False`, it may raise
    `NotFound`."""
    from worm.spaces.page_backend import PageBackend
    from worm.spaces.space import Space

    backend = PageBackend(store, database_id(name), create=create, clock=clock, ids=ids)
    return Space(backend, clock=clock, ids=ids)


class OpenSpaces:
    """The spaces of one store, each opened once. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self._store, self._clock, self._ids = store, clock, ids
        self._spaces: dict[str, Space] = {}
        self._opening = forks.new_lock()

    @staticmethod
    def database_of(name: str) -> str:
        """The database of the space with this name; `Invalid` if it cannot be a name."""
        return database_id(name)

    @staticmethod
    def name_of(db_id: str) -> str | None:
        """The space that a database belongs to, by its name; None for another kind of database."""
        return db_id.removeprefix(PREFIX) if db_id.startswith(PREFIX) else None

    def make(self, name: str) -> Space:
        """The space; created if it does not exist."""
        return self._open(name, create=True)

    def get(self, name: str) -> Space | None:
        """The space, if it exists."""
        try:
            return self._open(name, create=False)
        except NotFound:
            return None

    def close(self) -> None:
        with self._opening:
            for space in self._spaces.values():
                space.close()
            self._spaces.clear()

    def _open(self, name: str, *, create: bool) -> Space:
        database_id(name)  # `Invalid` if it cannot be a name
        with self._opening:
            if name not in self._spaces:
                self._spaces[name] = space_on(self._store, name, create=create, clock=self._clock, ids=self._ids)
            return self._spaces[name]


def database_id(name: str) -> str:
    """The page store of a space."""
    problem = path_name_problem(name)
    if problem:
        raise Invalid(f"the space name {show(name)} {problem}")
    return f"{PREFIX}{name}"
