"""`worm.open_pages`: opens a page store by its URL and name, for reading and writing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Conflict
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import MAIN, PageConfig
from worm.store import ensure_safe_once, open_store


def open_pages(
    url: str,
    name: str,
    *,
    branch: str = MAIN,
    config: PageConfig | None = None,
    create: bool = True,
    endpoint_url: str | None = None,
    cache_directory: Path | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> PageDb:
    """Open a page store, and create it if it does not exist; with `create=False`, that is `NotFound`. You become the
    only writer of the branch: the previous one is fenced. To read without that, use `PageReader.open`. `config` is for
    a new store.

    Examples:
        >>> with worm.open_pages("memory://pages", "main") as pages:
        ...     before = pages.write({"a/1": b"one"})
        ...     _ = pages.write({"a/1": b"two"})
        ...     pages.get_page("a/1", before)
        b'one'
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, clock=clock, ids=ids)
    ensure_safe_once(store, ids=ids)
    if create:
        with suppress(Conflict):  # it already exists
            create_database(store, name, config, clock=clock, ids=ids)
    return PageDb.open(store, name, branch=branch, cache_directory=cache_directory, clock=clock, ids=ids)
