"""Writes S3 Inventories as AWS delivers them, after https://docs.aws.amazon.com/AmazonS3/latest/userguide/
storage-inventory-location.html: a manifest with its checksum, and data files in CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from worm.store.base import NULL_VERSION, Store, Version

SOURCE = "source-bucket"
ALL_COLUMNS = (
    "Bucket",
    "Key",
    "VersionId",
    "IsLatest",
    "IsDeleteMarker",
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
    "IsMultipartUploaded",
)
CURRENT_COLUMNS = tuple(name for name in ALL_COLUMNS if name not in ("VersionId", "IsLatest", "IsDeleteMarker"))
_NAMES = {
    "Bucket": ("bucket", "required binary bucket (STRING)", pa.string()),
    "Key": ("key", "required binary key (STRING)", pa.string()),
    "VersionId": ("version_id", "optional binary version_id (STRING)", pa.string()),
    "IsLatest": ("is_latest", "optional boolean is_latest", pa.bool_()),
    "IsDeleteMarker": ("is_delete_marker", "optional boolean is_delete_marker", pa.bool_()),
    "Size": ("size", "optional int64 size", pa.int64()),
    "LastModifiedDate": (
        "last_modified_date",
        "optional int64 last_modified_date (TIMESTAMP(MILLIS,true))",
        pa.timestamp("ms", tz="UTC"),
    ),
    "ETag": ("e_tag", "optional binary e_tag (STRING)", pa.string()),
    "StorageClass": ("storage_class", "optional binary storage_class (STRING)", pa.string()),
    "IsMultipartUploaded": ("is_multipart_uploaded", "optional boolean is_multipart_uploaded", pa.bool_()),
}


class Delivery:
    """One delivery of an inventory into the destination, as a store."""

    def __init__(
        self,
        destination: Store,
        *,
        form: str = "CSV",
        columns: Sequence[str] = ALL_COLUMNS,
        prefix: str = "",
        source: str = SOURCE,
        at: datetime,
        configuration: str = "inventories/source-bucket/daily",
    ) -> None:
        self._destination = destination
        self._form = form
        self._columns = columns
        self._prefix = prefix
        self._source = source
        self._at = at
        self._configuration = configuration
        self.manifest_key = f"{configuration}/{at:%Y-%m-%dT%H-%MZ}/manifest.json"

    def write(self, parts: Iterable[Iterable[Version]]) -> str:
        """One data file for each part. Returns the key of the manifest."""
        files = []
        for number, versions in enumerate(parts):
            rows = [self._row(version) for version in versions]
            body = self._csv(rows) if self._form == "CSV" else self._parquet(rows)
            ending = "csv.gz" if self._form == "CSV" else "parquet"
            key = f"{self._configuration}/data/{number:08x}-0000-4000-8000-{self._at:%Y%m%d%H%M}.{ending}"
            self._destination.put(key, body)
            files.append({"key": key, "size": len(body), "MD5checksum": _md5(body)})
        manifest = {
            "sourceBucket": self._source,
            "destinationBucket": "arn:aws:s3:::destination-bucket",
            "version": "2016-11-30",
            "creationTimestamp": str(int(self._at.timestamp() * 1000)),
            "fileFormat": self._form,
            "fileSchema": self._schema(),
            "files": files,
        }
        self.put_manifest(manifest)
        return self.manifest_key

    def put_manifest(self, manifest: Mapping[str, object]) -> None:
        body = json.dumps(manifest, indent=2).encode()
        self._destination.put(self.manifest_key, body)
        self._destination.put(self.manifest_key.replace(".json", ".checksum"), f"{_md5(body)}\n".encode())

    def _schema(self) -> str:
        if self._form == "CSV":
            return ", ".join(self._columns)
        return f"message s3.inventory {{ {' '.join(f'{_NAMES[name][1]};' for name in self._columns)}}}"

    def _row(self, version: Version) -> dict[str, object]:
        is_marker, name = version.is_delete_marker, version.version_id
        return {
            "Bucket": self._source,
            "Key": self._prefix + version.key,
            "VersionId": None if name == NULL_VERSION else name,
            "IsLatest": version.is_latest,
            "IsDeleteMarker": is_marker,
            "Size": None if is_marker else version.size,
            "LastModifiedDate": version.last_modified,
            "ETag": None if is_marker else version.etag.strip('"'),
            "StorageClass": None if is_marker else "STANDARD",
            "IsMultipartUploaded": None if is_marker else False,
        }

    def _csv(self, rows: Sequence[Mapping[str, object]]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for row in rows:
            writer.writerow([_csv_cell(name, row[name]) for name in self._columns])
        return gzip.compress(text.getvalue().encode(), mtime=0)

    def _parquet(self, rows: Sequence[Mapping[str, object]]) -> bytes:
        arrays = {_NAMES[name][0]: pa.array([row[name] for row in rows], _NAMES[name][2]) for name in self._columns}
        file = io.BytesIO()
        pq.write_table(pa.table(arrays), file, compression="snappy", row_group_size=7)
        return file.getvalue()


def _csv_cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    if name == "Key":
        return quote_plus(str(value), safe="/")
    return "" if value is None else str(value)


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()
