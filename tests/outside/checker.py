"""An independent checker: does the bucket's own list of object versions agree with everything that was derived from it?

Written from docs/formats.md alone. It imports nothing of this library (a test holds that), so a mistake in the code
cannot hide in it. It reads objects with plain boto3 and computes histories, rows, indexes, heads, marks, snapshots and
trash itself.

A `Checker` lives as long as the bucket that it watches. It remembers every version that it saw, so that it can still
judge the entries of versions that somebody removed since. The exact history of a document is known:

- one entry for every version that is a valid document, and for every delete marker that deletes something, in the
  order of S3's listing, numbered from 1 without a gap; the others are named in `metadata.skipped`, or not at all;
- `reverted` entries, which name a version again, only where versions have been removed;
- replaying the entries gives the document.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus
from xml.etree import ElementTree

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Json = Any
Document = dict[str, Json]

DOCUMENT_BYTES_MAX = 10 * 1024 * 1024
DEPTH_MAX = 64
RESERVED = {"etag", "versionId", "reverted", "skipped", "commitSeq"}
YEAR_9999 = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
RECORDING_SECONDS_MAX = 30
"""From seeing what became of a document to the entry about it."""


# The bucket


@dataclass(frozen=True)
class Version:
    """A row of S3's version listing; `etag` is empty for a delete marker."""

    key: str
    id: str
    etag: str
    modified: str
    is_latest: bool
    is_marker: bool

    @property
    def identity(self) -> tuple[str, str, str]:
        """There is one null version at a time: only content and time tell it from the previous one."""
        return (self.id, self.etag, self.modified) if self.id == "null" else (self.id, "", "")


@dataclass
class Bucket:
    """What is in the bucket, as one listing of all versions says; bodies are read when asked for, and kept."""

    client: S3Client
    name: str
    bodies: dict[tuple[str, tuple[str, str, str]], tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    versions: dict[str, list[Version]] = field(default_factory=dict)

    def look(self) -> None:
        """List every version, oldest first within a key. botocore would lose the order of versions and markers."""
        pages: list[bytes] = []

        def keep(http_response: Any, **_: object) -> None:
            pages.append(http_response.content)

        events = self.client.meta.events
        events.register("after-call.s3.ListObjectVersions", keep)
        try:
            for _ in self.client.get_paginator("list_object_versions").paginate(Bucket=self.name):
                pass
        finally:
            events.unregister("after-call.s3.ListObjectVersions", keep)
        self.versions = {}
        for page in pages:
            for version in _rows(page):
                self.versions.setdefault(version.key, []).insert(0, version)

    def current(self, key: str) -> Version | None:
        newest = self.versions.get(key, [])[-1:]
        return newest[0] if newest and not newest[0].is_marker else None

    def keys(self, prefix: str) -> list[str]:
        """Current objects."""
        return sorted(key for key in self.versions if key.startswith(prefix) and self.current(key) is not None)

    def read(self, version: Version) -> tuple[bytes, dict[str, str]]:
        name = (version.key, version.identity)
        if name not in self.bodies:
            found = self.client.get_object(Bucket=self.name, Key=version.key, VersionId=version.id)
            self.bodies[name] = (found["Body"].read(), found["Metadata"])
        return self.bodies[name]

    def body(self, key: str) -> bytes | None:
        version = self.current(key)
        return None if version is None else self.read(version)[0]


def _earlier(ts: str, seconds: int) -> str:
    return (datetime.fromisoformat(ts) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(page: bytes) -> Iterator[Version]:
    root = ElementTree.fromstring(page)
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    for row in root:
        kind = row.tag.removeprefix(space)
        if kind in ("Version", "DeleteMarker"):
            told = {child.tag.removeprefix(space): child.text or "" for child in row}
            modified = datetime.fromisoformat(told["LastModified"]).strftime("%Y-%m-%dT%H:%M:%SZ")
            latest, marker = told["IsLatest"] == "true", kind == "DeleteMarker"
            key = unquote_plus(told["Key"]) if is_encoded else told["Key"]
            yield Version(key, told["VersionId"], told.get("ETag", ""), modified, latest, is_marker=marker)


# JSON


def canonical(value: Json) -> bytes:
    return _text(value).encode()


def _text(value: Json) -> str:
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode())
        return "{" + ",".join(f"{_text(name)}:{_text(inner)}" for name, inner in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value, ensure_ascii=False)


def _float(value: float) -> str:
    if value != 0 and not 1e-5 <= abs(value) < 1e16:
        mantissa, _, exponent = repr(value).partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"
    digits = repr(value)
    return (
        f"{value:.{len(digits.partition('e')[0].replace('-', '').replace('.', '')) + 4}f}" if "e" in digits else digits
    )


def document_of(body: bytes) -> Document | None:
    """The JSON object, or None where the bytes are not a document."""

    def pairs(members: list[tuple[str, Json]]) -> Document:
        if len({name for name, _ in members}) != len(members):
            raise ValueError("a name twice")
        return dict(members)

    def refuse(constant: str) -> Json:
        raise ValueError(constant)

    if len(body) > DOCUMENT_BYTES_MAX or body.startswith(b"\xef\xbb\xbf"):
        return None
    try:
        value = json.loads(body.decode(), object_pairs_hook=pairs, parse_constant=refuse)
        canonical(value)  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_bounded(value, 1) else None


def _is_bounded(value: Json, depth: int) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth <= DEPTH_MAX and all(_is_bounded(one, depth + 1) for one in inner)
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return not isinstance(value, float) or math.isfinite(value)


# The schema


@dataclass(frozen=True)
class Model:
    """One model of the pushed schema, with the defaults of docs/formats.md."""

    name: str
    raw: Mapping[str, Json]
    layouts: Mapping[str, str]

    @property
    def parts(self) -> list[str]:
        return str(self.raw["path"]).split("/")

    @property
    def directory(self) -> str:
        """`org/customers/` of `#org/@customers/(id:uuid)`."""
        return "".join(f"{part.lstrip('#@')}/" for part in self.parts if not part.startswith("("))

    @property
    def collection(self) -> str:
        return self.directory.rstrip("/").rpartition("/")[2]

    @property
    def id_type(self) -> str | None:
        last = self.parts[-1]
        return last[1:-1].partition(":")[2] if last.startswith("(") else None

    @property
    def file(self) -> str:
        return str(self.raw.get("file", "data.json"))

    @property
    def has_oplog(self) -> bool:
        return bool(self.raw.get("oplog", False))

    @property
    def indexes(self) -> list[Mapping[str, Json]]:
        return list(self.raw.get("indexes", {}).values())

    @property
    def keeps_manifest(self) -> bool:
        return bool(self.raw.get("manifest", {}).get("enabled", False) or self.indexes)

    @property
    def every(self) -> int:
        return int(self.raw.get("snapshots", {}).get("every", 10))

    @property
    def is_whole(self) -> bool:
        manifest = self.raw.get("manifest", {})
        return manifest.get("fields") is None and bool(manifest.get("extra", True))

    @property
    def row_fields(self) -> list[str]:
        named = self.raw.get("manifest", {}).get("fields")
        names = [*(self.raw.get("fields", {}) if named is None else named), *(one["field"] for one in self.indexes)]
        return list(dict.fromkeys(name for name in [*names, "createdAt", "updatedAt"] if name != "id"))

    def key(self, entity_id: str) -> str:
        return (
            f"{self.directory}{self.file}"
            if self.id_type is None
            else f"{self.directory}{segment(entity_id)}/{self.file}"
        )

    def id_of(self, key: str) -> str | None:
        """The id of a document's key; None for all other keys."""
        rest = key.removeprefix(self.directory)
        if rest == key or not rest.endswith(self.file):
            return None
        if self.id_type is None:
            return "_" if rest == self.file else None
        name, _, file = rest.partition("/")
        entity_id = unquote(name, errors="surrogateescape") if "%" in name else name
        good = file == self.file and is_id(entity_id, self.id_type) and segment(entity_id) == name
        return entity_id if good and len(name.encode()) <= 200 else None

    def beside(self, what: str, entity_id: str) -> str:
        """The directory of the entity's oplog, snapshots or trash."""
        names = {"oplog": ".oplog", "snapshots": ".snapshots", "trash": ".worm.trash"}
        layout = self.layouts[what]
        if layout == "root":
            return f"{names[what]}/{self.collection}/{segment(entity_id)}/"
        if layout == "collection":
            return f"{self.directory}{names[what]}/{segment(entity_id)}/"
        return f"{self.key(entity_id).removesuffix(self.file)}{names[what]}/"

    def is_valid(self, entity_id: str, document: Document) -> bool:
        fits = _fits_fields(document, self.raw.get("fields", {}), ("id", "createdAt", "updatedAt"), self.raw)
        return fits and (
            "id" not in document or document["id"] == (int(entity_id) if self.id_type == "int" else entity_id)
        )

    def row(self, document: Document) -> Document:
        row = {name: found[0] for name in self.row_fields if (found := _at(document, name))}
        if self.is_whole:
            for name, value in document.items():
                if "." in name:
                    row.setdefault(".", {})[name] = value
                elif name != "id":
                    row.setdefault(name, value)
        return row

    @property
    def limits(self) -> tuple[int, int]:
        manifest = self.raw.get("manifest", {})
        return int(manifest.get("maxFieldBytes", 32768)), int(manifest.get("maxRowBytes", 131072))

    def cut_row(self, document: Document, stored: Mapping[str, Json] | None) -> Document:
        """The row as the stored one says that it was cut; how, where that keeps the limits."""
        row, (field_max, row_max) = self.row(document), self.limits
        names = (stored or {}).get(".cut")
        small = {name: value for name, value in row.items() if len(canonical(value)) <= field_max}
        if small == row and len(canonical(row)) <= row_max:
            return row
        if names is True:
            return {**{name: value for name, value in small.items() if name in (stored or {})}, ".cut": True}
        kept = {name: value for name, value in small.items() if name not in (names or ())}
        cut = {**kept, ".cut": sorted(set(row) - set(kept))}
        return cut if len(canonical(cut)) <= row_max else {".cut": True}


def models_of(schema: Mapping[str, Json]) -> list[Model]:
    storage = schema.get("storage", {})
    layouts = {what: storage.get(what) or storage.get("layout", "root") for what in ("oplog", "snapshots", "trash")}
    return [Model(name, raw, layouts) for name, raw in schema["models"].items() if not raw.get("space")]


def segment(entity_id: str) -> str:
    """An id in keys."""
    if not (set("/%") & set(entity_id) or entity_id.startswith(".") or any(char < " " for char in entity_id)):
        return entity_id
    escaped = [f"%{byte:02X}" for byte in entity_id[0].encode()]
    for char in entity_id[1:]:
        escaped += [f"%{byte:02X}" for byte in char.encode()] if char < "0" or char == "%" else [char]
    return "".join(escaped)


def is_id(entity_id: str, kind: str) -> bool:
    if not entity_id or unicodedata.normalize("NFC", entity_id) != entity_id:
        return False
    if re.search("[\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u007f-\u009f]", entity_id):
        return False
    rules = {
        "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "slug": r"[a-z0-9]+(-[a-z0-9]+)*",
        "int": r"0|[1-9][0-9]{0,18}",
        "ulid": r"[0-7][0-9A-HJKMNP-TV-Z]{25}",
        "string": r"(?s:.)+",
    }
    return re.fullmatch(rules[kind], entity_id) is not None and (kind != "int" or int(entity_id) < 2**63)


def _fits_fields(
    value: Document, fields: Mapping[str, Json], always: tuple[str, ...], rules: Mapping[str, Json]
) -> bool:
    if rules.get("strict") and set(value) - set(fields) - set(always):
        return False
    required = all(value.get(name) is not None for name, rule in fields.items() if rule.get("required"))
    return required and all(_fits(value[name], rule) for name, rule in fields.items() if value.get(name) is not None)


def _fits(value: Json, rule: Mapping[str, Json] | str) -> bool:
    rule = {"type": rule} if isinstance(rule, str) else rule
    if rule.get("enum") is not None and value not in rule["enum"]:
        return False
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if rule["type"] == "array":
        items = rule.get("items")
        return isinstance(value, list) and (items is None or all(_fits(item, items) for item in value))
    if rule["type"] == "object":
        return isinstance(value, dict) and _fits_fields(value, rule.get("properties") or {}, (), {})
    simple: dict[str, Callable[[], bool]] = {
        "string": lambda: isinstance(value, str),
        "ref": lambda: isinstance(value, str),
        "number": lambda: is_number,
        "integer": lambda: is_number and isinstance(value, int),
        "boolean": lambda: isinstance(value, bool),
        "datetime": lambda: isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value) is not None,
    }
    return simple[rule["type"]]()


def _at(document: Document, path: str) -> list[Json]:
    """The value at a path, as a list of one; empty where there is none."""
    found: Json = document
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            return []
        found = found[name]
    return [found]


# The checker


@dataclass
class Entity:
    """What the entries of one entity come to: the newest one and the document after it."""

    seq: int = 0
    etag: str | None = None
    version: str | None = None
    ts: str = ""
    document: Document | None = None
    before_delete: Document | None = None
    skipped: list[Json] = field(default_factory=list)

    @property
    def head(self) -> list[Json]:
        return [self.seq, self.etag, self.version, self.document is not None, self.ts]


class Checker:
    """Watches one bucket. `problems` looks again, each time."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self.bucket = Bucket(client, bucket)
        self._known: dict[str, list[Version]] = {}
        self._parsed: dict[tuple[str, tuple[str, str, str]], Json] = {}
        self._found: list[str] = []

    def problems(self, *, tables_complete: bool = True) -> list[str]:
        """All that is wrong, each with the key that it is about. `tables_complete` False: files of tables may be
        missing, because somebody has deleted them; they may still not be wrong."""
        self._found = []
        self.bucket.look()
        body = self.bucket.body(".worm.schema.json")
        if body is None:
            return [".worm.schema.json: no schema was pushed"]
        for model in models_of(json.loads(body)):
            entities = self._entities(model)
            if model.keeps_manifest:
                self._table(model, entities, tables_complete)
            self._claims(model)
        return self._found

    def _say(self, key: str, problem: str) -> None:
        self._found.append(f"{key}: {problem}")

    def _expect(self, key: str, what: str, found: Json, wanted: Json) -> None:
        if found is not wanted and canonical(found) != canonical(wanted):
            shown = f"{canonical(found).decode()[:300]}, not {canonical(wanted).decode()[:300]}"
            self._say(key, f"{what} is {shown}")

    def _own(self, key: str) -> Json:
        """A file of the library, which must be canonical; None where it is missing or is none."""
        version = self.bucket.current(key)
        if version is None:
            return None
        name = (key, version.identity)
        if name not in self._parsed:
            body = self.bucket.read(version)[0]
            value = document_of(body)
            self._parsed[name] = value if value is not None and canonical(value) == body else None
        if self._parsed[name] is None:
            self._say(key, "is not canonical JSON")
        return self._parsed[name]

    # Documents and entries

    def _remember(self, key: str) -> list[Version]:
        """Every version that was ever seen of the key, oldest first."""
        known = self._known.setdefault(key, [])
        seen = {version.identity for version in known}
        for version in self.bucket.versions.get(key, []):
            if version.identity not in seen:
                known.append(version)
                if not version.is_marker:
                    self.bucket.read(version)
        return known

    def _document(self, model: Model, entity_id: str, version: Version) -> Document | None:
        """What the version says, if it is a valid document."""
        document = document_of(self.bucket.read(version)[0])
        return document if document is not None and model.is_valid(entity_id, document) else None

    def _entities(self, model: Model) -> dict[str, Entity]:
        ids = {entity_id for key in self.bucket.versions if (entity_id := model.id_of(key)) is not None}
        entries = self._entry_keys(model) if model.has_oplog else {}
        entities = {}
        for entity_id in sorted({*ids, *entries}):
            if model.has_oplog:
                entity = _History(self, model, entity_id, entries.get(entity_id, {})).check()
                self._marks(model, entity_id, entries.get(entity_id, {}))
                self._trash(model, entity_id, entity)
            else:
                entity = self._plain(model, entity_id)
            entities[entity_id] = entity
        return entities

    def _plain(self, model: Model, entity_id: str) -> Entity:
        """Of a model without oplog only the current object counts."""
        self._remember(model.key(entity_id))
        current = self.bucket.current(model.key(entity_id))
        if current is None:
            return Entity()
        document = self._document(model, entity_id, current)
        return Entity(etag=current.etag, ts=current.modified, document=document)

    def _entry_keys(self, model: Model) -> dict[str, dict[int, str]]:
        """id → seq → key."""
        found: dict[str, dict[int, str]] = {}
        shape = re.escape(model.beside("oplog", "\0")).replace(re.escape(segment("\0")), "([^/]+)")
        if model.id_type is None:
            shape = re.escape(model.beside("oplog", "_"))
        for key in self.bucket.versions:
            match = re.fullmatch(f"{shape}([0-9]{{4,}})\\.json", key)
            if match is not None and self.bucket.current(key) is not None:
                entity_id = unquote(match[1]) if model.id_type is not None else "_"
                found.setdefault(entity_id, {})[int(match[match.lastindex or 1])] = key
        return found

    # Beside the entries

    def _marks(self, model: Model, entity_id: str, entries: Mapping[int, str]) -> None:
        folder = model.beside("oplog", entity_id) + ".times/"
        wanted, snapshots = {}, {}
        for seq, key in entries.items():
            entry = self._own(key) if seq % model.every == 0 else None
            if entry is not None:
                left = int((YEAR_9999 - datetime.fromisoformat(entry["ts"])).total_seconds())
                wanted[f"{folder}{left:012}-{10**19 - seq:019}"] = {"seq": seq, "ts": entry["ts"]}
                if entry["op"] != "delete":
                    snapshots[seq] = (entry["ts"], entry.get("snapshot"))
        found = self.bucket.keys(folder)
        for key in sorted({*wanted, *found}):
            if key not in wanted or key not in found:
                self._say(key, "a time mark without its entry" if key in found else "the time mark is missing")
            else:
                self._expect(key, "the mark", self._own(key), wanted[key])
        if model.raw.get("snapshots", {}).get("enabled", False):
            self._snapshots(model, entity_id, snapshots)

    def _snapshots(self, model: Model, entity_id: str, wanted: Mapping[int, tuple[str, Json]]) -> None:
        folder = model.beside("snapshots", entity_id)
        found = {}
        for key in self.bucket.keys(folder):
            snapshot = self._own(key)
            if snapshot is None:
                continue
            found[snapshot["seq"]] = snapshot["document"]
            name = key.removeprefix(folder).removesuffix(".json")
            if re.fullmatch(re.escape(snapshot["ts"][:-1]) + r"(\.\d+)?Z", name) is None:
                self._say(key, f"is a snapshot of {snapshot['ts']}")
        for seq, (_, document) in wanted.items():
            if seq not in found:
                self._say(folder, f"the snapshot of entry {seq} is missing")
            elif document is not None:
                self._expect(folder, f"the snapshot of entry {seq}", found[seq], document)

    def _trash(self, model: Model, entity_id: str, entity: Entity) -> None:
        """A deleted document of a model with soft delete has a copy, and a tombstone that says where it was."""
        if not model.raw.get("softDelete", False) or entity.document is not None or entity.seq == 0:
            return
        folder, key = model.beside("trash", entity_id), model.key(entity_id)
        if self.bucket.current(key) is not None:
            return  # an invalid document is over it
        tombstone, copy = self._own(folder + ".worm.tombstone"), self.bucket.body(folder + model.file)
        if tombstone is None or copy is None:
            self._say(folder, f"{key} was deleted, and is not in trash")
            return
        self._expect(folder, "restorePath", tombstone["restorePath"], key)
        self._expect(folder, "ttl", tombstone["ttl"], model.raw.get("trashTtlDays", 30))
        named = (tombstone.get("versionId") or "null", tombstone["etag"])
        deleted = [version for version in self._known.get(key, []) if (version.id, version.etag) == named]
        body = self.bucket.read(deleted[-1])[0] if deleted else copy
        if copy != body and (document_of(body) is None or canonical(document_of(copy)) != canonical(document_of(body))):
            self._say(folder, "the copy is not the version that its tombstone names")
        if not entity.skipped:
            self._expect(folder, "the copy", document_of(copy), entity.before_delete)

    # Tables

    def _table(self, model: Model, entities: Mapping[str, Entity], complete: bool) -> None:
        key = f"{model.directory}.worm.manifest.json"
        root = self._sealed(key, complete)
        if root is not None:
            table = self._merged(model, root) if root.get("partitioned") else root
            self._rows(model, key, table, entities)
            for index in model.indexes:
                self._index(model, index, root, entities, complete)
        if model.has_oplog:
            self._heads(model, entities, complete)

    def _sealed(self, key: str, complete: bool = True) -> Json:
        if self.bucket.current(key) is None:
            if complete:
                self._say(key, "is missing")
            return None
        value = self._own(key)
        if value is not None:
            rest = {name: inner for name, inner in value.items() if name != "checksum"}
            self._expect(
                key, "checksum", value.get("checksum"), f"sha256:{hashlib.sha256(canonical(rest)).hexdigest()}"
            )
        return value

    def _piece(self, folder: str, piece: Mapping[str, Json]) -> Json:
        """A file that a root names: it hashes to its name."""
        key = folder + piece["file"]
        body = self.bucket.body(key)
        if body is None:
            self._say(key, "is missing, and a root names it")
            return {}
        if hashlib.sha256(body).hexdigest()[:16] != piece["file"].rpartition("-")[2].partition(".")[0]:
            self._say(key, "does not hash to its name")
        return self._own(key) or {}

    def _merged(self, model: Model, root: Mapping[str, Json]) -> Document:
        """Base and deltas of a partitioned manifest as one table: the newest seq of an id wins."""
        folder = f"{model.directory}.worm.manifest/"
        table: Document = {**root, "entities": {}, "seqs": {}, "etags": {}}
        bases = [self._piece(folder, piece) for piece in root["partitions"]]
        known = sum(len(base.get("entities", {})) for base in bases)
        self._expect(folder, "count of the base", root["count"], known)
        for part in [*bases, *(self._piece(folder, piece) for piece in root["deltas"])]:
            for entity_id in {*part.get("entities", {}), *part.get("seqs", {}), *part.get("etags", {})}:
                seq = part.get("seqs", {}).get(entity_id, 0)
                if entity_id in table["seqs"] and table["seqs"][entity_id] >= seq:
                    continue
                table["seqs"][entity_id] = seq
                for name in ("entities", "etags"):
                    table[name].pop(entity_id, None)
                    if entity_id in part.get(name, {}):
                        table[name][entity_id] = part[name][entity_id]
        return table

    def _rows(self, model: Model, key: str, table: Mapping[str, Json], entities: Mapping[str, Entity]) -> None:
        rows = {
            entity_id: model.cut_row(entity.document, table["entities"].get(entity_id))
            for entity_id, entity in entities.items()
            if entity.document is not None
        }
        for entity_id in sorted({*rows, *table["entities"]}):
            self._expect(key, f"the row of {entity_id!r}", table["entities"].get(entity_id), rows.get(entity_id))
        partitioned = bool(table.get("partitioned"))
        if not partitioned:
            self._expect(key, "count", table["count"], len(rows))
        limits = ".cut {}/{}".format(*model.limits)
        fields = [*sorted(model.row_fields), *(["."] if model.is_whole else []), limits]
        named = sorted(name for name in table["fields"] if not name.startswith("."))
        self._expect(key, "fields", [*named, *(name for name in table["fields"] if name.startswith("."))], fields)
        if not partitioned:
            self._expect(key, "cut", table.get("cut", 0), sum(".cut" in row for row in rows.values()))
        if model.has_oplog:
            recorded = {entity_id: entity.seq for entity_id, entity in entities.items() if entity.seq}
            self._expect(key, "seqs", table["seqs"], recorded)
            self._expect(
                key, "lastUpdated", table["lastUpdated"], max((one.ts for one in entities.values()), default="")
            )
            if not partitioned:
                self._expect(key, "revision", table["revision"], sum(recorded.values()))
            count, sentinel = len(rows), self.bucket.body(f"{model.directory}.worm")
            if sentinel is not None and partitioned is False:
                self._expect(f"{model.directory}.worm", "count", json.loads(sentinel)["count"], count)
        else:
            etags = {entity_id: entity.etag for entity_id, entity in entities.items() if entity.etag is not None}
            self._expect(key, "etags", table.get("etags", {}), etags)
            self._expect(key, "oplog", table.get("oplog"), False)

    def _index(
        self,
        model: Model,
        index: Mapping[str, Json],
        root: Mapping[str, Json],
        entities: Mapping[str, Entity],
        complete: bool,
    ) -> None:
        name = "".join(
            char if re.fullmatch(r"[A-Za-z0-9_.-]", char) else "".join(f"~{byte:02X}" for byte in char.encode())
            for char in index["field"]
        )
        key = f"{model.directory}.worm.index/{name}.json"
        stored = self._sealed(key, complete)
        if stored is None:
            return
        kind, unique = index.get("type", "standard"), bool(index.get("unique", False))
        self._expect(key, "type", [stored["type"], stored["unique"]], [kind, unique])
        if root.get("partitioned"):
            self._expect(key, "partitioned", [stored.get("partitioned"), stored["entries"]], [True, {}])
            self._index_parts(model, index, root)
            return
        self._expect(key, "revision", stored["revision"], root["revision"])
        self._expect(key, "lastUpdated", stored["lastUpdated"], root["lastUpdated"])
        stored_rows = root.get("entities", {})
        rows = {
            entity_id: model.cut_row(entity.document, stored_rows.get(entity_id))
            for entity_id, entity in entities.items()
            if entity.document is not None
        }
        entries, conflicts = index_entries(index, rows)
        self._expect(key, "entries", stored["entries"], entries)
        self._expect(key, "conflicts", stored.get("conflicts", {}), conflicts)

    def _index_parts(self, model: Model, index: Mapping[str, Json], root: Mapping[str, Json]) -> None:
        """The parts have the entries of the base alone."""
        base: Document = {}
        for piece in root["partitions"]:
            base |= self._piece(f"{model.directory}.worm.manifest/", piece).get("entities", {})
        folder = f"{model.directory}.worm.index/{index['field']}/"
        found: Document = {}
        conflicts: Document = {}
        for piece in root["indexes"].get(index["field"], {}).get("parts", []):
            part = self._piece(folder, piece)
            found |= part.get("entries", {})
            conflicts |= part.get("conflicts", {})
        self._expect(folder, "entries and conflicts", [found, conflicts], list(index_entries(index, base)))

    def _heads(self, model: Model, entities: Mapping[str, Entity], complete: bool) -> None:
        key = f"{model.directory}.worm.heads.json"
        if self.bucket.current(key) is None:
            return  # heads only save requests
        stored = self._own(key)
        if stored is None:
            return
        heads = stored.get("heads", {})
        if stored.get("partitioned"):
            heads = self._partitioned_heads(model, stored)
        wanted = {entity_id: entity.head for entity_id, entity in entities.items() if entity.seq}
        due = {entity_id for entity_id in wanted if complete and model.key(entity_id) in self.bucket.versions}
        for entity_id in sorted({*heads, *due}):
            self._expect(key, f"the head of {entity_id!r}", heads.get(entity_id), wanted.get(entity_id))

    def _partitioned_heads(self, model: Model, root: Mapping[str, Json]) -> Document:
        folder = f"{model.directory}.worm.heads/"
        pieces = root["partitions"] if "directory" not in root else self._piece(folder, root["directory"])["partitions"]
        merged: Document = {}
        for piece in [*pieces, *root["deltas"]]:
            for entity_id, head in self._piece(folder, piece).get("heads", {}).items():
                if entity_id not in merged or merged[entity_id][0] < head[0]:
                    merged[entity_id] = head
        return merged

    def _claims(self, model: Model) -> None:
        """A claim is named by its value."""
        for key in self.bucket.keys(f"{model.directory}.worm.index/"):
            if "/.claims/" in key:
                claim = self._own(key)
                value = None if claim is None else claim["value"]
                if hashlib.sha256(canonical(normal(value))).hexdigest() != key.rpartition("/")[2]:
                    self._say(key, "the claim's name is not the hash of its value")


def index_entries(index: Mapping[str, Json], rows: Mapping[str, Document]) -> tuple[Document, Document]:
    ids: dict[str, list[str]] = {}
    for entity_id in sorted(rows):
        if index["field"] in rows[entity_id]:
            value = rows[entity_id][index["field"]]
            values = value if index.get("type") == "multiValue" and isinstance(value, list) else [value]
            for name in dict.fromkeys(map(bounded_name, values)):
                ids.setdefault(name, []).append(entity_id)
        elif is_cut(rows[entity_id], index["field"]):
            ids.setdefault("=cut", []).append(entity_id)
    if not index.get("unique", False):
        return dict(ids), {}
    conflicts = {name: holders for name, holders in ids.items() if len(holders) > 1 and name not in LISTED}
    entries = {name: holders if name in LISTED and len(holders) > 1 else holders[0] for name, holders in ids.items()}
    return entries, conflicts


LISTED = ("=null", "=cut")


def is_cut(row: Mapping[str, Json], field: str) -> bool:
    cut, first = row.get(".cut"), field.partition(".")[0]
    return cut is not None and (first not in row if cut is True else field in cut or first in cut)


def bounded_name(value: Json) -> str:
    name = entry_name(value).encode("utf-8", "surrogatepass")
    return name.decode("utf-8", "surrogatepass") if len(name) <= 1024 else f"=#{hashlib.sha256(name).hexdigest()}"


def entry_name(value: Json) -> str:
    if isinstance(value, str) and not value.startswith("="):
        return value
    return "=" + canonical(normal(value)).decode()


def normal(value: Json) -> Json:
    """Whole floats as integers, where those are in range."""
    if isinstance(value, dict):
        return {name: normal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [normal(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**64
    return int(value) if is_whole else value


class _History:
    """The entries of one entity against the versions of its key."""

    def __init__(self, checker: Checker, model: Model, entity_id: str, entries: Mapping[int, str]) -> None:
        self._checker, self._model, self._id, self._entries = checker, model, entity_id, entries
        self._key = model.key(entity_id)
        self._present = {version.identity for version in checker.bucket.versions.get(self._key, [])}
        self._versions = checker._remember(self._key)
        self._position = 0  # of the next version that has no entry yet
        self._named: set[tuple[str, str, str]] = set()
        self._at = Entity()
        self._invalid: list[Version] = []

    def check(self) -> Entity:
        seqs = sorted(self._entries)
        if seqs != list(range(1, len(seqs) + 1)):
            self._checker._say(self._model.beside("oplog", self._id), f"the numbers of its entries are {seqs[:20]}")
        for seq in seqs:
            entry = self._checker._own(self._entries[seq])
            if entry is not None:
                self._entry(self._entries[seq], seq, entry)
        self._pass_over(len(self._versions), self._key)
        self._end()
        return self._at

    def _end(self) -> None:
        """What is recorded last is what is there, unless that is not a valid document."""
        current = self._checker.bucket.current(self._key)
        if current is None:
            if self._at.document is not None:
                self._checker._say(self._key, f"is gone, and entry {self._at.seq} says that it is there")
            return
        document = self._checker._document(self._model, self._id, current)
        if document is None:
            return
        if self._at.document is None or canonical(document) != canonical(self._at.document):
            self._checker._say(self._key, f"the document is not what its {self._at.seq} entries say")
        elif (self._at.version or "null") != current.id:
            self._checker._say(self._key, f"is version {current.id}, and the last entry names {self._at.version}")

    def _entry(self, key: str, seq: int, entry: Document) -> None:
        metadata = entry.get("metadata", {})
        version = self._version_of(key, entry, metadata)
        before, after = self._at.document, self._replayed(key, entry)
        self._checker._expect(key, "seq", entry.get("seq"), seq)
        self._op(key, entry, before, version)
        if version is not None:
            self._checker._expect(key, "etag", metadata.get("etag", ""), version.etag)
            self._time(key, entry, version)
            if not version.is_marker:
                self._source(key, entry, version, after)
        elif entry["ts"] < self._at.ts:
            self._checker._say(key, "its time is before that of the previous entry")
        skipped = [[one["versionId"], one["etag"]] for one in metadata.get("skipped", [])]
        gone = {tuple(one) for one in skipped} - {(one.id, one.etag) for one in self._versions}
        wanted = [[one.id if one.id != "null" else None, one.etag] for one in self._invalid]
        if not gone:
            told = [one if one[0] != "null" else [None, one[1]] for one in skipped]
            self._checker._expect(key, "skipped", told, wanted)
        self._invalid = []
        self._at = Entity(
            seq, metadata.get("etag"), metadata.get("versionId"), entry["ts"], after,
            before if after is None else None, metadata.get("skipped", []),
        )  # fmt: skip

    def _time(self, key: str, entry: Document, version: Version) -> None:
        """A version that is current again has the time at which somebody saw that, and wrote the entry."""
        earliest = latest = max(version.modified, self._at.ts)
        if entry.get("metadata", {}).get("reverted"):
            written = self._checker.bucket.current(key)
            latest = max(latest, "" if written is None else written.modified)
            earliest = max(earliest, _earlier(latest, RECORDING_SECONDS_MAX))
        if not earliest <= entry["ts"] <= latest:
            self._checker._say(key, f"ts is {entry['ts']}, not between {earliest} and {latest}")

    def _version_of(self, key: str, entry: Document, metadata: Mapping[str, Json]) -> Version | None:
        """The version that the entry names; those before it that have no entry are judged."""
        version_id, etag = metadata.get("versionId") or "null", metadata.get("etag", "")
        is_marker = entry.get("op") == "delete"
        matching = [
            at
            for at, version in enumerate(self._versions)
            if version.id == version_id
            and version.is_marker == is_marker
            and (version_id != "null" or version.etag == etag)
        ]
        if metadata.get("reverted"):
            is_known = is_marker or version_id == "null"  # a marker that deleted nothing had none
            if not matching or not (is_known or self._versions[matching[-1]].identity in self._named):
                self._checker._say(key, f"goes back to version {version_id}, which no entry had")
            return self._versions[matching[-1]] if matching else None
        ahead = [at for at in matching if at >= self._position]
        if not ahead:
            if version_id == "null":
                return None  # a null version that is gone, or the end of all versions
            what = "names a version that had its turn" if matching else "names a version that does not exist"
            self._checker._say(key, f"{what}: {version_id}")
            return None
        self._pass_over(ahead[0], key)
        self._position = ahead[0] + 1
        self._named.add(self._versions[ahead[0]].identity)
        return self._versions[ahead[0]]

    def _pass_over(self, end: int, key: str) -> None:
        """Versions that get no entry: invalid ones, markers over nothing, and what was gone before anybody looked."""
        for version in self._versions[self._position : end]:
            if version.is_marker:
                needless = self._at.document is None
            else:
                needless = self._checker._document(self._model, self._id, version) is None
                if needless:
                    self._invalid.append(version)
            if not needless and version.identity in self._present:
                what = "delete marker" if version.is_marker else "version"
                self._checker._say(self._key, f"the {what} {version.id} has no entry (before {key})")

    def _replayed(self, key: str, entry: Document) -> Document | None:
        before = self._at.document
        if entry.get("op") == "delete":
            return None
        if "diff" not in entry:
            return entry.get("snapshot")
        absent = entry.get("absent", {})
        document = dict(before or {})
        for name, (old, new) in entry["diff"].items():
            if (name in absent.get("before", [])) is (name in document) or canonical(document.get(name)) != canonical(
                old
            ):
                self._checker._say(key, f"its diff of {name!r} does not fit the document before it")
            document[name] = new
            if name in absent.get("after", []):
                del document[name]
        return document

    def _op(self, key: str, entry: Document, before: Document | None, version: Version | None) -> None:
        op, seq = entry.get("op"), entry.get("seq", 0)
        if op == "delete":
            self._checker._expect(key, "snapshot", entry.get("snapshot"), before)
            allowed = {"delete"} if before is not None else set()
        elif before is not None:
            allowed = {"update"}
            if ("snapshot" in entry) is not (seq % self._model.every == 0):
                self._checker._say(key, f"every {self._model.every}th update carries a snapshot, and no other")
        else:
            metadata = {} if version is None else self._checker.bucket.read(version)[1]
            restored = entry.get("metadata", {}).get("reverted") or metadata.get("worm-op") == "restore"
            allowed = {"restore"} if restored else {"create"}
        if op not in allowed:
            self._checker._say(key, f"op is {op!r} where it must be one of {sorted(allowed)}")

    def _source(self, key: str, entry: Document, version: Version, after: Document | None) -> None:
        """What the entry says against the object that it names."""
        body, metadata = self._checker.bucket.read(version)
        self._checker._expect(key, "the document after it", after, document_of(body))
        if entry.get("snapshot") is not None:
            self._checker._expect(key, "snapshot", entry["snapshot"], document_of(body))
        if self._checker._document(self._model, self._id, version) is None:
            self._checker._say(key, f"records version {version.id}, which is not a valid document")
        if entry.get("metadata", {}).get("reverted"):
            return  # the change is that newer versions were removed: its author is another than the object's
        if metadata.get("worm-actor"):
            self._checker._expect(key, "actor", entry.get("actor"), unquote(metadata["worm-actor"]))
        note = document_of(unquote(metadata.get("worm-note", "{}")).encode()) or {}
        for name in set(note) - RESERVED:
            self._checker._expect(key, f"metadata.{name}", entry.get("metadata", {}).get(name), note[name])
