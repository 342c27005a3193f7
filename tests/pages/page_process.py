"""A process that works on a page store, for the tests that kill such processes.

    python -m tests.pages.page_process write URL DB NAME COUNT     commits `NAME-1` to `NAME-COUNT`, flushes every third
    python -m tests.pages.page_process apply|compact|collect URL DB

It prints `ack N LSN` for each commit and `done` at its end, or the error that ended it.

`WORM_CRASH_AT=POINT:N` is where it dies (kill -9 of itself): `before-` or `after-` `log`, `lease`, `delta`, `image`,
`root` (writes) or `delete`, counted from 1; or `after-ack`. That belongs to this program, not to the product.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.log.log_process import Points, open_pointed
from worm.errors import WormError
from worm.pages.apply import Applier
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb
from worm.store.base import Attempt, Store
from worm.store.file import FileStore
from worm.store.s3 import S3Store

PAGES = 5
KINDS = {"/log/": "log", "/delta/": "delta", "/image/": "image", "lease.json": "lease", "manifest.json": "root"}


def page(name: str, number: int) -> dict[str, bytes | None]:
    """What the transaction with this number writes: one page of its own, and one that all share."""
    body = hashlib.shake_256(f"{name} {number}".encode()).digest(500)
    return {f"{name}/{number:04d}": body, f"shared/{number % PAGES}": str(number).encode()}


class PagePoints(Points):
    """Named by what is written."""

    def around(self, key: str, attempt: Callable[[], Attempt]) -> Attempt:
        kind = next((kind for part, kind in KINDS.items() if part in key), "other")
        self.reach(f"before-{kind}")
        outcome = attempt()
        self.reach(f"after-{kind}")
        return outcome


def open_store(url: str, points: Points) -> Store:
    """With points around deletes, too."""
    store = open_pointed(url, points)
    inner = store.delete

    def delete(key: str) -> None:
        points.reach("before-delete")
        inner(key)
        points.reach("after-delete")

    store.delete = delete  # type: ignore[method-assign]  # of this one store, in a process of a test
    return store


def plain_store(url: str) -> Store:
    """The same, for the test itself."""
    return S3Store(*url.removeprefix("s3://").split("/", 1)) if url.startswith("s3://") else FileStore(Path(url))


def main(work: str, url: str, db_id: str, name: str = "", count: str = "0") -> None:
    points = PagePoints(os.environ)
    store = open_store(url, points)
    try:
        if work == "write":
            _write(store, db_id, name, int(count), points)
        elif work == "apply":
            Applier(store, db_id).run()
        elif work == "compact":
            while not Compactor(store, db_id).run(force=True).is_done:
                pass
        else:
            PageCollector(store, db_id).run()
    except WormError as error:
        print(type(error).__name__, error, flush=True)
        return
    print("done", flush=True)


def _write(store: Store, db_id: str, name: str, count: int, points: Points) -> None:
    db = PageDb.open(store, db_id, name=name)
    for number in range(1, count + 1):
        lsn = db.write(page(name, number), txn=f"{name}-{number}")
        print("ack", number, lsn, flush=True)
        points.reach("after-ack")
        if number % 3 == 0:
            db.flush()


def environment(root: Path, **settings: str) -> Mapping[str, str]:
    """That of a child: this code, and nothing of another installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORM_")}
    return {**kept, "PYTHONPATH": f"{root / 'shared'}:{root}", **settings}


if __name__ == "__main__":
    main(*sys.argv[1:])
