"""Reads an S3 Inventory: what a bucket held at an earlier moment, from files instead of LIST requests.

An inventory is a `manifest.json` and the data files that it names, in the destination bucket of its configuration
(docs/spark.md, "Inventories"). A row is one version of one key, or a delete marker. The rows are in no particular
order, and the versions of one key may be in several files.

An inventory is a *hint*. It is hours old, it was not taken at one moment, and it may lack the newest objects. So a
caller reads what the inventory shows as changed, and never concludes from a missing row that an object is gone.

- Every file is checked against the MD5 of the manifest before its first row is used, and the manifest against
  `manifest.checksum` if that is there. A file that does not match, or has another form, is `Corrupt`.
- A data file goes to a temporary file piece by piece, so memory does not depend on its size; its disk space does.
- Keys are relative to the prefix of the store; keys outside of it are left out. In CSV files, keys are URL-encoded, and
  a space is a plus sign.
- An inventory of current versions only has no version ids (`has_versions` is false).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import PurePosixPath
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote_plus

from worm.errors import Corrupt, Invalid, NotFound, show
from worm.formats import JsonValue, loads_own, shapes
from worm.store import NULL_VERSION, Store, Version, open_store, split_url
from worm.values import dataclass

if TYPE_CHECKING:
    from arro3.core import RecordBatch

MANIFEST_NAME, CHECKSUM_NAME = "manifest.json", "manifest.checksum"
PARQUET_MARK = b"PAR1"
PIECE_BYTES = 8 << 20
BATCH_ROWS = 8192
CONFIGURE = "configure the inventory with all versions and the fields Size, LastModifiedDate and ETag"
ELSEWHERE = "the inventory was changed or is still being written; use another one"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN_TIME = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_PARQUET_FIELD = re.compile(r"\b(?:required|optional)\s+\w+\s+(\w+)")
_MD5 = re.compile(r"[0-9a-f]{32}")
_TRUE, _FALSE = "true", "false"
_REQUIRED = ("Bucket", "Key", "LastModifiedDate", "ETag")
_OF_VERSIONS = ("VersionId", "IsLatest", "IsDeleteMarker")
COLUMNS = {
    "bucket": "Bucket",
    "key": "Key",
    "version_id": "VersionId",
    "is_latest": "IsLatest",
    "is_delete_marker": "IsDeleteMarker",
    "size": "Size",
    "last_modified_date": "LastModifiedDate",
    "e_tag": "ETag",
}
"""The columns that are used: their names in Parquet files, and in CSV files."""
_MANIFEST = shapes.record(
    "the manifest of an S3 Inventory",
    {
        "sourceBucket": shapes.TEXT,
        "destinationBucket": shapes.TEXT,
        "creationTimestamp": shapes.TEXT,
        "fileFormat": shapes.TEXT,
        "fileSchema": shapes.TEXT,
        "files": shapes.list_of(
            shapes.record("a data file", {"key": shapes.TEXT, "size": shapes.WHOLE, "MD5checksum": shapes.TEXT})
        ),
    },
)

Format = Literal["CSV", "Parquet"]


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One data file: its key in the destination bucket, its size, and the MD5 of its bytes."""

    key: str
    size: int
    md5: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The manifest of an inventory. A plain value: it can be sent to other processes, and each file can be read by
    another one. `created`: when S3 began to make it. It may lack any change after that, and some of the hours before.
    `columns`: all columns in the order of the files, by their CSV names."""

    source_bucket: str
    created: datetime
    format: Format
    columns: tuple[str, ...]
    files: tuple[InventoryFile, ...]
    url: str
    endpoint_url: str | None
    prefix: str

    @property
    def has_versions(self) -> bool:
        """Whether it lists all versions with their ids, and delete markers."""
        return set(_OF_VERSIONS) <= set(self.columns)

    def versions(self, file: InventoryFile) -> Iterator[Version]:
        """The rows of one file whose keys are under the store's prefix, in the order of the file."""
        with _downloaded(_store(self.url, self.endpoint_url), file) as body:
            rows = self._csv_rows(body, file.key) if self.format == "CSV" else self._parquet_rows(body, file.key)
            for row in rows:
                if row["Bucket"] != self.source_bucket:
                    raise Corrupt(f"has a row of the bucket {show(row['Bucket'])}", key=file.key, hint=ELSEWHERE)
                version = version_of(row, self.prefix, file.key)
                if version is not None:
                    yield version

    def _csv_rows(self, body: IO[bytes], key: str) -> Iterator[dict[str, Any]]:
        count = len(self.columns)
        try:
            with gzip.open(body, "rt", encoding="utf-8", newline="") as text:
                for fields in csv.reader(text, strict=True):
                    if len(fields) != count:
                        raise Corrupt(f"has a row of {len(fields)} instead of {count} columns", key=key, hint=ELSEWHERE)
                    row: dict[str, Any] = dict(zip(self.columns, fields, strict=True))
                    row["Key"] = unquote_plus(row["Key"], errors="surrogateescape")
                    yield row
        except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
            raise Corrupt(f"is not a gzip-compressed CSV file: {error}", key=key, hint=ELSEWHERE) from error

    def _parquet_rows(self, body: IO[bytes], key: str) -> Iterator[dict[str, Any]]:
        from arro3.core import RecordBatch
        from arro3.io import read_parquet

        wanted = {name: column for name, column in COLUMNS.items() if column in self.columns}
        _check_marks(body, key)
        batches = map(RecordBatch.from_arrow, read_parquet(body, batch_size=BATCH_ROWS))
        while (batch := _next(batches, key)) is not None:
            missing = wanted.keys() - set(batch.schema.names)
            if missing:
                raise Corrupt(f"lacks the columns {', '.join(sorted(missing))}", key=key, hint=ELSEWHERE)
            cells = [batch.column(name).to_pylist() for name in wanted]
            for values in zip(*cells, strict=True):
                yield dict(zip(wanted.values(), values, strict=True))


def open_inventory(url: str, of: str, endpoint_url: str | None = None) -> Inventory:
    """Reads the manifest at `url`, which ends with `manifest.json`. `of` is the URL of the store whose objects it must
    list: `Invalid` if it is the inventory of another bucket. A directory has no name of a bucket to compare."""
    base, key = _place(url)
    store = _store(base, endpoint_url)
    found = store.get(key)
    if found is None:
        hint = f"name the {MANIFEST_NAME} in the directory of one delivery, such as …/2026-02-24T01-00Z/{MANIFEST_NAME}"
        raise NotFound("there is no manifest of an inventory", key=key, hint=hint)
    _check_sum(store, key, found.body)
    shape = loads_own(found.body, key=key)
    shapes.check(shape, _MANIFEST, key, hint="this is not the manifest.json of an S3 Inventory")
    source, prefix = cast(str, shape["sourceBucket"]), _checked_prefix(cast(str, shape["sourceBucket"]), of)
    form, columns = _columns(shape, key)
    listed = cast("list[dict[str, Any]]", shape["files"])
    files = tuple(InventoryFile(one["key"], one["size"], one["MD5checksum"].lower()) for one in listed)
    damaged = next((one for one in files if not _MD5.fullmatch(one.md5)), None)
    if damaged is not None:
        raise Corrupt(f"the MD5 of {damaged.key} is {show(damaged.md5)}", key=key, hint=ELSEWHERE)
    root = _files_root(base, key, files)
    return Inventory(source, _created(shape, key), form, columns, files, root, endpoint_url, prefix)


def version_of(row: Mapping[str, Any], prefix: str, source: str) -> Version | None:
    """The version of a row by CSV column names, with values as in CSV or in Parquet. None if its key is not under the
    prefix. `source`: what to name in an error."""
    key = row["Key"]
    if not isinstance(key, str) or not key.startswith(prefix):
        return None
    is_marker = _flag(row.get("IsDeleteMarker"), default=False, source=source)
    is_latest = _flag(row.get("IsLatest"), default=True, source=source)
    name = row.get("VersionId") or NULL_VERSION
    return Version.of(
        key[len(prefix) :],
        None if name == NULL_VERSION and is_latest else name,
        etag="" if is_marker else _etag(row["ETag"], source),
        size=0 if is_marker else _size(row.get("Size"), source),
        moment=_moment(row["LastModifiedDate"], source),
        is_latest=is_latest,
        is_delete_marker=is_marker,
    )


# The manifest


def _place(url: str) -> tuple[str, str]:
    """The URL of the store with the manifest, and its key."""
    parts = split_url(url)
    text, scheme, rest = parts
    name = PurePosixPath(rest)
    if name.name != MANIFEST_NAME:
        raise Invalid(f"{show(text)} does not end with {MANIFEST_NAME}", hint=f"write s3://bucket/…/{MANIFEST_NAME}")
    if scheme == "s3":
        bucket, key = parts.bucket_and_prefix()
        return f"s3://{bucket}", key
    if scheme == "file":
        return text[: -len(MANIFEST_NAME) - 1], MANIFEST_NAME
    raise Invalid(f"an inventory cannot be read from {show(text)}", hint="use s3://bucket/…/manifest.json")


def place_of(url: str) -> tuple[str | None, str]:
    """The bucket of a store, and what its keys start with there. A directory has no name of a bucket."""
    parts = split_url(url)
    if parts.scheme != "s3":
        return None, ""
    bucket, prefix = parts.bucket_and_prefix()
    return bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _checked_prefix(source: str, of: str) -> str:
    bucket, prefix = place_of(of)
    if bucket not in (None, source):
        raise Invalid(
            f"it is the inventory of the bucket {show(source)}, not of {show(bucket)}",
            path="inventory",
            hint="name the manifest of an inventory whose source is this bucket",
        )
    return prefix


def _check_sum(store: Store, key: str, body: bytes) -> None:
    """`manifest.checksum` is written last. If it is not there, the MD5s of the files have to suffice."""
    beside = f"{key[: -len(MANIFEST_NAME)]}{CHECKSUM_NAME}"
    found = store.get(beside)
    if found is not None and found.body.decode("ascii", "replace").strip().strip('"').lower() != _md5(body):
        raise Corrupt(f"does not match {CHECKSUM_NAME}", key=key, hint=ELSEWHERE)


def _columns(shape: Mapping[str, JsonValue], key: str) -> tuple[Format, tuple[str, ...]]:
    form, schema = cast(str, shape["fileFormat"]), cast(str, shape["fileSchema"])
    if form == "CSV":
        columns = [name.strip() for name in schema.split(",")]
    elif form == "Parquet":
        columns = [COLUMNS.get(name, name) for name in _PARQUET_FIELD.findall(schema)]
    else:
        raise Invalid(
            f"the inventory {key} has the format {show(form)}", path="inventory", hint="configure CSV or Parquet"
        )
    missing = [name for name in _REQUIRED if name not in columns]
    partly = [name for name in _OF_VERSIONS if name not in columns]
    if missing or len(partly) not in (0, len(_OF_VERSIONS)):
        what = f"the inventory {key} lacks the columns {', '.join(missing or partly)}"
        raise Invalid(what, path="inventory", hint=CONFIGURE)
    return cast(Format, form), tuple(columns)


def _created(shape: Mapping[str, JsonValue], key: str) -> datetime:
    text = cast(str, shape["creationTimestamp"])
    if not (text.isascii() and text.isdigit()) or len(text) > len("9999999999999"):
        raise Corrupt(f"creationTimestamp is {show(text)}, not milliseconds", key=key, hint=ELSEWHERE)
    return _EPOCH + timedelta(milliseconds=int(text))


def _files_root(base: str, key: str, files: Sequence[InventoryFile]) -> str:
    """The URL that the keys of the files are relative to: the bucket. A directory instead of a bucket is one above the
    manifest, the nearest one that has the files."""
    if base.startswith("s3:") or not files:
        return base
    place = PurePosixPath(base.partition("://")[2])
    for one in (place, *place.parents):
        if _store(f"file://{one}", None).head(files[0].key) is not None:
            return f"file://{one}"
    raise NotFound(
        "there is no directory above the manifest with its data files",
        key=files[0].key,
        hint="copy the whole directory of the inventory's configuration, with the names that it has in the bucket",
    )


@lru_cache(maxsize=16)
def _store(url: str, endpoint_url: str | None) -> Store:
    """Opened once per process."""
    return open_store(url, endpoint_url=endpoint_url)


# Data files


@contextmanager
def _downloaded(store: Store, file: InventoryFile) -> Iterator[IO[bytes]]:
    """The file as a temporary one, complete and checked."""
    digest = hashlib.md5(usedforsecurity=False)
    with TemporaryFile(prefix="worm-inventory-") as body:
        for start in range(0, file.size, PIECE_BYTES):
            piece = store.get_range(file.key, start, min(PIECE_BYTES, file.size - start))
            if piece is None:
                raise NotFound("a data file of the inventory is gone", key=file.key, hint="use a newer inventory")
            digest.update(piece)
            body.write(piece)
        if digest.hexdigest() != file.md5:
            raise Corrupt("does not match the MD5 of the manifest", key=file.key, hint=ELSEWHERE)
        body.seek(0)
        yield cast("IO[bytes]", body)


def _check_marks(body: IO[bytes], key: str) -> None:
    """Without a footer, arro3 panics, which is not even an `Exception`."""
    start, size = body.read(len(PARQUET_MARK)), body.seek(0, 2)
    body.seek(max(0, size - len(PARQUET_MARK)))
    end = body.read()
    body.seek(0)
    if not start == end == PARQUET_MARK or size < 3 * len(PARQUET_MARK):
        raise Corrupt("is not a Parquet file", key=key, hint=ELSEWHERE)


def _next(batches: Iterator[RecordBatch], key: str) -> RecordBatch | None:
    try:
        return next(batches, None)
    except Exception as error:  # arro3 raises this very class
        raise Corrupt(f"is not a Parquet file: {error}", key=key, hint=ELSEWHERE) from error


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def _flag(value: object, *, default: bool, source: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in (None, ""):
        return default
    if value in (_TRUE, _FALSE):
        return value == _TRUE
    raise Corrupt(f"{show(value)} is neither true nor false", key=source, hint=ELSEWHERE)


def _size(value: object, source: str) -> int:
    if value in (None, ""):
        return 0
    if isinstance(value, int) or (isinstance(value, str) and value.isascii() and value.isdigit()):
        return int(value)
    raise Corrupt(f"{show(value)} is not a size", key=source, hint=ELSEWHERE)


def _etag(value: object, source: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise Corrupt(f"{show(value)} is not an etag", key=source, hint=ELSEWHERE)


def _moment(value: object, source: str) -> datetime:
    """From a time of CSV (`2026-02-24T01:02:03.000Z`) or of Parquet. Without one, the
    version may be newer than anything."""
    if value in (None, ""):
        return _UNKNOWN_TIME
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError as error:
        raise Corrupt(f"{show(value)} is not a time", key=source, hint=ELSEWHERE) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
