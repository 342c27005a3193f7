"""A database of any kind as one file, and back: `worm db pack`, `worm db unpack`.

The file is a tar archive of the database's objects, the root last. The root is read first: everything that it names
exists for `gc_min_age_seconds`, and the log continues after it. The lease is not included: a process that opens the
copy takes a new epoch. In a copy, commits after the last flush have the time at which it was unpacked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from worm.clock import Ids, SystemClock
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.log import DbKeys, LogFiles, LogRoot
from worm.store import Store, Won

LEFT_OUT = ("lease.json", "gc/clock")
AGAIN = "slots of the log were collected in the meantime: pack it again"


@dataclass(frozen=True, slots=True)
class PackedDatabase:
    """What was packed or unpacked."""

    kind: str
    objects: int
    bytes: int


def pack_database(store: Store, db_id: str, file: Path) -> PackedDatabase:
    """Write a database into a file that must not exist. Writers may continue: everything committed before is in it."""
    keys, clock = DbKeys(db_id), SystemClock()
    root = LogFiles(store, keys, clock=clock, ids=Ids.system(clock)).root
    found = root.read()
    if found is None:
        raise NotFound(f"there is no database {db_id!r}", key=keys.root)
    objects = size = 0
    try:
        with file.open("xb") as opened, tarfile.open(fileobj=opened, mode="w") as archive:
            for path, body in (*_objects(store, keys), (keys.ROOT_NAME, found.encode())):
                member = tarfile.TarInfo(path)
                member.size = len(body)
                archive.addfile(member, BytesIO(body))
                objects, size = objects + 1, size + len(body)
    except FileExistsError as error:
        raise Conflict(f"{file} already exists", hint="name a file that does not exist") from error
    after = root.read()
    if after is None or after.boundary != found.boundary:
        file.unlink()
        raise Conflict(AGAIN, key=keys.root)
    return PackedDatabase(found.kind, objects, size)


def _objects(store: Store, keys: DbKeys) -> Iterator[tuple[str, bytes]]:
    for listed in store.list(keys.directory):
        path = listed.key.removeprefix(keys.directory)
        stored = None if path == keys.ROOT_NAME or path.endswith(LEFT_OUT) else store.get(listed.key)
        if stored is not None:  # otherwise it was collected, and the root does not name it
            yield path, stored.body


def unpack_database(store: Store, file: Path, db_id: str) -> PackedDatabase:
    """Create a database from a packed one. `Conflict` if anything with this name exists."""
    keys = DbKeys(db_id)
    if next(iter(store.list(keys.directory, limit=1)), None) is not None:
        raise Conflict(f"database {db_id!r} already exists", key=keys.root)
    root, objects, size = LogRoot(), 0, 0
    try:
        with tarfile.open(file, mode="r:") as archive:
            names = archive.getnames()
            if not names or names[-1] != keys.ROOT_NAME or any(".." in name.split("/") for name in names):
                raise Invalid(f"{file} is not a packed database: its root is not at the end")
            for member in archive:
                opened = archive.extractfile(member)
                body = b"" if opened is None else opened.read()
                if member.name == keys.ROOT_NAME:
                    root = LogRoot.decode(body, member.name)
                if not isinstance(store.put_if_absent(keys.directory + member.name, body), Won):
                    raise Conflict("another process writes a database of this name", key=keys.directory + member.name)
                objects, size = objects + 1, size + len(body)
    except tarfile.TarError as error:
        raise Corrupt(f"{file} cannot be read: {error}") from error
    return PackedDatabase(root.kind, objects, size)
