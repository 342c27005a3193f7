"""Other tools that save one document after the other: TinyDB and sqlite-utils in a directory, deltalake in a bucket.

TinyDB and sqlite-utils are not among our dependencies. If one is not installed, it is left out, with a note. None of
them writes a history, as our save does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import deltalake
import pyarrow as pa

Document = Mapping[str, object]
Put = Callable[[Document], object]


def installed(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: left out (`pip install {name.replace('_', '-')}`)", file=sys.stderr)
        return None


def tinydb_put(folder: Path) -> Put | None:
    """Its default: the whole database is one JSON file, which every insert rewrites, without fsync."""
    module = installed("tinydb")
    if module is None:
        return None
    table = module.TinyDB(folder / "tiny.json").table("things")
    return lambda document: table.insert(dict(document))


def sqlite_utils_put(folder: Path) -> Put | None:
    """One transaction each: the document, its id as primary key, and an index on the name. As durable as the SQLite
    settings below."""
    module = installed("sqlite_utils")
    if module is None:
        return None
    database = module.Database(folder / "utils.db")
    database.enable_wal()
    database.execute("pragma synchronous=full")
    table = database["things"]
    table.create({"id": str, "name": str, "count": int, "about": str}, pk="id")
    table.create_index(["name"])
    return lambda document: table.insert(dict(document))


def deltalake_put(url: str, endpoint_url: str) -> Put:
    """An append of one row: a Parquet file and an entry of its log, by put-if-absent."""
    options = {"aws_endpoint": endpoint_url, "aws_allow_http": "true", "conditional_put": "etag"}

    def put(document: Document) -> None:
        rows = pa.Table.from_pylist([dict(document)])
        deltalake.write_deltalake(url, rows, mode="append", storage_options=options)

    return put
