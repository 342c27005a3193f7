"""Builds and parses every key of a bucket in one place.

- *document*: `org/customers/<id>/<file>`; a singleton's is `org/settings/<file>` and its id is `_`. In this and all
  other keys, `<id>` is the encoded id: the id itself, or escaped where it needs an escape (`formats/fields.py`).
- *system directory*: `.oplog`, `.snapshots`, `.worm.trash`, in one of three layouts: `root` (`.oplog/customers/<id>/`),
  `collection` (`org/customers/.oplog/<id>/`), `inline` (`org/customers/<id>/.oplog/`).
- *system key*: any key with a segment that starts with a dot, or under `db/`. Documents never have one, so workers drop
  them before any request.
- *time mark*: `<time>-<seq>`, both counting down with fixed width, so that the newest mark sorts first: the seconds
  left until the end of the year 9999 in 12 digits, and 10^19 less the seq in 19 digits. A listing that starts at a time
  begins with the newest mark that is not after it.
- *archive*: `<oplog of the entity>/.archive/<first>-<last>-<16 hex>.ndjson`: the seqs as in the names of entries, and
  the start of the SHA-256 of its bytes. Its time mark is the mark of its first entry plus all of this, so the one LIST
  that finds a moment also names its archive.
- *index file*: named for its field. Letters, digits, `_`, `-` and inner dots stay; every other byte of the UTF-8 form
  becomes `~XX` (uppercase hex). So each field has exactly one file name, and each file name at most one field.

Invariants: `parse(build(...))` gives back what was built, for every kind and layout; `parse` never raises. A builder
refuses a text that is not an id; `document_key` also refuses an id of another type than the model's.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from enum import Enum

from worm.clock import moment_of
from worm.errors import Invalid, show
from worm.formats import (
    SINGLETON_ID,
    JsonObject,
    JsonValue,
    ModelDef,
    Schema,
    check_safe,
    decode_id,
    dumps_document,
    encode_id,
    unescape_id,
)
from worm.values import dataclass

__all__ = ["BUCKET_SENTINEL", "SCHEMA_KEY", "SINGLETON_ID", "KeyInfo", "KeyKind", "StorageResolver", "is_system_key"]

BUCKET_SENTINEL = ".worm"
SCHEMA_KEY = ".worm.schema.json"
RELAYOUT_KEY = ".worm.relayout.json"
ATTACHED_KEY = ".worm.attached.json"
CHANGES_DIR = ".worm.changes"
ANSWERS_PREFIX = ".worm.api/idempotency/"
"""Stored answers of the HTTP API, for calls that repeat an `Idempotency-Key`."""
LOG_PREFIX = "db/"
OPLOG_DIR = ".oplog"
TIMES_DIR = ".times"
ARCHIVE_DIR = ".archive"
SNAPSHOTS_DIR = ".snapshots"
TRASH_DIR = ".worm.trash"
TOMBSTONE = ".worm.tombstone"
MANIFEST_FILE = ".worm.manifest.json"
MANIFEST_DIR = ".worm.manifest"
LAKE_DIR = ".worm.lake"
HEADS_FILE = ".worm.heads.json"
HEADS_DIR = ".worm.heads"
INDEX_DIR = ".worm.index"
CLAIMS_DIR = ".claims"
FIELD_FILE_BYTES_MAX = 200

_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_SEQ_END = 10**19
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_MARK_NAME = re.compile(r"[0-9]{12}-([0-9]{19})")
_NUMBER = r"([0-9]{4}|[1-9][0-9]{4,18})"
_ARCHIVE = re.compile(rf"{_NUMBER}-{_NUMBER}-([0-9a-f]{{16}})\.ndjson")
_ARCHIVE_MARK = re.compile(r"([0-9]{12}-[0-9]{19})-([0-9]{19})-([0-9a-f]{16})")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_DOT = ord(".")
_ESCAPED = re.compile(r"(?:[A-Za-z0-9_.-]|~[0-9A-F]{2})+")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")
_SEQ = re.compile(r"([0-9]{4}|[1-9][0-9]{4,18})\.json")
_SNAPSHOT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z)\.json")
_MANIFEST_PIECE = re.compile(r"(_meta|(?:partition-(?:0|[1-9][0-9]{0,5})|delta|directory|stage)-[0-9a-f]{16})\.json")
_LAKE_PIECE = re.compile(r"_worm\.json|partition-(?:0|[1-9][0-9]{0,5})-[0-9a-f]{16}\.parquet")
_LAKE_LOG = re.compile(r"_last_checkpoint|[0-9]{20}\.(?:json|checkpoint(?:\.[0-9]{10}\.[0-9]{10})?\.parquet)")
_HEADS_PIECE = re.compile(r"(_replaced|(?:heads-(?:0|[1-9][0-9]{0,5})|delta|directory|stage)-[0-9a-f]{16})\.json")
_INDEX_PIECE = re.compile(r"(part-(?:0|[1-9][0-9]{0,5})-[0-9a-f]{16})\.json")
_CHANGE_SET = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{25})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class KeyKind(Enum):
    """What a key is."""

    DOCUMENT = "document"
    OPLOG = "oplog"
    TIME_MARK = "time_mark"
    ARCHIVE = "archive"
    SNAPSHOT = "snapshot"
    TRASH = "trash"
    TOMBSTONE = "tombstone"
    MANIFEST = "manifest"
    LAKE = "lake"
    INDEX = "index"
    HEADS = "heads"
    CHANGE_SET = "change_set"
    CLAIM = "claim"
    SENTINEL = "sentinel"
    SCHEMA = "schema"
    LOG = "log"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A parsed key. `name`: snapshot time, time mark, archive, change set, claim hash or partition. `field`: the field
    of an index or claim.

    UNKNOWN with a model: the place of a document, but with an invalid id. UNKNOWN without a model: not one of our keys.
    """

    kind: KeyKind
    model: str | None = None
    id: str | None = None
    seq: int | None = None
    name: str | None = None
    reason: str | None = None
    field: str | None = None

    @property
    def archive(self) -> ArchiveName | None:
        """The parts of an archive's name; None for any other key."""
        return ArchiveName.parse(self.name or "") if self.kind is KeyKind.ARCHIVE else None


def is_system_key(key: str) -> bool:
    """True for keys that belong to this library and are never documents."""
    return key.startswith((".", LOG_PREFIX)) or "/." in key


def _check_text(given: object, path: str) -> None:
    if not isinstance(given, str):
        raise Invalid(f"must be text, not {show(given)}", path=path)


class StorageResolver:
    """The keys of one schema. Models are named by their schema name.

    Examples:
        >>> worm.StorageResolver(db.schema).document_key("Customer", "acme")
        'customers/acme/data.json'
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = Schema.require(schema)
        self._layouts = {
            OPLOG_DIR: schema.storage.oplog_layout,
            SNAPSHOTS_DIR: schema.storage.snapshots_layout,
            TRASH_DIR: schema.storage.trash_layout,
        }
        self._directories = {name: model.location.directory for name, model in schema.models.items()}
        self._singletons = {name for name, model in schema.models.items() if model.is_singleton}
        self._by_directory = {model.location.directory: model for model in schema.models.values()}
        self._by_collection = {model.collection: model for model in schema.models.values()}

    def __repr__(self) -> str:
        return f"<StorageResolver ({', '.join(self._schema.models)})>"

    # -- building

    def collection_path(self, model: str) -> str:
        """`org/customers/`."""
        return self._directory(model) + "/"

    def _directory(self, model: str) -> str:
        given: object = model
        found = self._directories.get(given) if isinstance(given, str) else None
        return self._schema.model(model).location.directory if found is None else found

    def entity_path(self, model: str, id: str) -> str:
        """`org/customers/<id>/`: the directory of the document."""
        directory = self._directory(model)
        check_safe(id)
        if model in self._singletons:
            self._schema.model(model).check_id(id)
            return f"{directory}/"
        return f"{directory}/{encode_id(id)}/"

    def document_key(self, model: str, id: str) -> str:
        definition = self._schema.model(model)
        definition.check_id(id)
        return self.entity_path(model, id) + definition.file

    def oplog_path(self, model: str, id: str) -> str:
        return self._system_path(OPLOG_DIR, model, id)

    def time_mark_path(self, model: str, id: str) -> str:
        """`…/.oplog/…/.times/`: the directory of the entity's time marks, inside its oplog."""
        return f"{self.oplog_path(model, id)}{TIMES_DIR}/"

    def archive_path(self, model: str, id: str) -> str:
        """`…/.oplog/…/.archive/`: the directory of the entity's archives, inside its oplog."""
        return f"{self.oplog_path(model, id)}{ARCHIVE_DIR}/"

    def oplog_root(self, model: str) -> str:
        """The prefix of all oplog entries of the model (inline: among the documents)."""
        return self._system_root(OPLOG_DIR, model)

    def snapshot_root(self, model: str) -> str:
        """The prefix of all snapshots of the model (inline: among the documents)."""
        return self._system_root(SNAPSHOTS_DIR, model)

    def trash_root(self, model: str) -> str:
        """The prefix of the model's trash (inline: among the documents)."""
        return self._system_root(TRASH_DIR, model)

    def snapshot_path(self, model: str, id: str) -> str:
        return self._system_path(SNAPSHOTS_DIR, model, id)

    def trash_path(self, model: str, id: str) -> str:
        return self._system_path(TRASH_DIR, model, id)

    def oplog_key(self, model: str, id: str, seq: int) -> str:
        """`…/0001.json`: at least four digits. Sort entries by number: from 10000 on, names sort in the wrong order."""
        given: object = seq
        if not isinstance(given, int) or not 1 <= given < 10**19:
            raise Invalid(f"oplog seq must be from 1 to 10^19 - 1, not {show(given)}")
        return f"{self.oplog_path(model, id)}{seq:04d}.json"

    def time_mark_key(self, model: str, id: str, name: str) -> str:
        """`name` comes from `mark_name` or `ArchiveName.mark`."""
        _check_text(name, "name")
        if marked_seq(name) is None and ArchiveName.of_mark(name) is None:
            raise Invalid(f"{show(name)} is not the name of a time mark")
        return self.time_mark_path(model, id) + name

    def snapshot_key(self, model: str, id: str, name: str) -> str:
        """`name` is an ISO 8601 time in UTC, `2026-02-24T12:00:00Z`, with a fraction if needed."""
        given: object = name
        if not isinstance(given, str) or not _SNAPSHOT.fullmatch(f"{name}.json"):
            raise Invalid(f"snapshot name {show(name)} must be a time such as 2026-02-24T12:00:00Z")
        return f"{self.snapshot_path(model, id)}{name}.json"

    def trash_key(self, model: str, id: str) -> str:
        """The deleted document's copy."""
        return self.trash_path(model, id) + self._schema.model(model).file

    def tombstone_key(self, model: str, id: str) -> str:
        return self.trash_path(model, id) + TOMBSTONE

    def manifest_key(self, model: str) -> str:
        return self.collection_path(model) + MANIFEST_FILE

    def manifest_dir(self, model: str) -> str:
        """`org/customers/.worm.manifest/`: the directory of a partitioned manifest."""
        return f"{self.collection_path(model)}{MANIFEST_DIR}/"

    def lake_dir(self, model: str) -> str:
        """`org/customers/.worm.lake/`: the Parquet files of a partitioned manifest, and the log of its lake table."""
        return f"{self.collection_path(model)}{LAKE_DIR}/"

    def index_key(self, model: str, field: str) -> str:
        return f"{self.collection_path(model)}{INDEX_DIR}/{escape_field(field)}.json"

    def claim_key(self, model: str, field: str, digest: str) -> str:
        """The claim of a unique value; `digest` is the SHA-256 of its canonical bytes in lowercase hex."""
        _check_text(digest, "digest")
        if not _SHA256.fullmatch(digest):
            raise Invalid(f"claim digest {show(digest)} must be 64 lowercase hex digits")
        return f"{self.collection_path(model)}{INDEX_DIR}/{escape_field(field)}/{CLAIMS_DIR}/{digest}"

    def heads_key(self, model: str) -> str:
        return self.collection_path(model) + HEADS_FILE

    def heads_dir(self, model: str) -> str:
        """`org/customers/.worm.heads/`: the directory of partitioned heads."""
        return f"{self.collection_path(model)}{HEADS_DIR}/"

    def change_set_path(self, model: str) -> str:
        """`.worm.changes/customers/`."""
        return f"{CHANGES_DIR}/{self._schema.model(model).collection}/"

    def change_set_key(self, model: str, name: str) -> str:
        """`name` is a ULID."""
        _check_text(name, "name")
        file = f"{name}.json"
        if not _CHANGE_SET.fullmatch(file):
            raise Invalid(f"change set name {show(name)} must be a ULID")
        return self.change_set_path(model) + file

    def collection_sentinel_key(self, model: str) -> str:
        return self.collection_path(model) + BUCKET_SENTINEL

    def collection_sentinel(self, model: str, *, count: JsonValue = 0, last_modified: JsonValue = None) -> bytes:
        """The sentinel's content. `idType` is null for a singleton; `lastModified` is null until it is known."""
        definition = self._schema.model(model)
        shape: JsonObject = {
            "model": definition.name,
            "idType": definition.id_type,
            "mode": definition.mode,
            "oplog": definition.oplog,
            "softDelete": definition.soft_delete,
            "count": count,
            "lastModified": last_modified,
        }
        return dumps_document(shape)

    def _system_root(self, directory: str, model: str) -> str:
        layout = self._layouts[directory]
        if layout == "root":
            return f"{directory}/{self._schema.model(model).collection}/"
        return self.collection_path(model) + (f"{directory}/" if layout == "collection" else "")

    def _system_path(self, directory: str, model: str, id: str) -> str:
        layout = self._layouts[directory]
        entity = self.entity_path(model, id)
        if layout == "inline":
            return f"{entity}{directory}/"
        segment = encode_id(id)
        if layout == "collection":
            return f"{self.collection_path(model)}{directory}/{segment}/"
        return f"{directory}/{self._schema.model(model).collection}/{segment}/"

    # -- parsing

    def parse(self, key: str) -> KeyInfo:
        """What the key is. Never raises, whatever the text."""
        _check_text(key, "key")
        if key == BUCKET_SENTINEL:
            return KeyInfo(KeyKind.SENTINEL)
        if key == SCHEMA_KEY:
            return KeyInfo(KeyKind.SCHEMA)
        if key.startswith(LOG_PREFIX):
            return KeyInfo(KeyKind.LOG, name=key[len(LOG_PREFIX) :])
        segments = key.split("/")
        if segments[0].startswith("."):
            return self._parse_root(segments)
        found = self.place(segments)
        return unknown_key("belongs to no model") if found is None else self._parse_in_collection(*found)

    def place(self, segments: list[str]) -> tuple[ModelDef, list[str]] | None:
        """The model whose directory contains a key of these segments (the innermost one if there are several), and the
        segments after that directory. The time does not depend on the number of models."""
        for length in range(len(segments) - 1, 0, -1):
            model = self._by_directory.get("/".join(segments[:length]))
            if model is not None:
                return model, segments[length:]
        return None

    def _parse_root(self, segments: list[str]) -> KeyInfo:
        if len(segments) < 3:
            return unknown_key("no key of this library")
        directory, collection, *rest = segments
        model = self._by_collection.get(collection)
        if model is None:
            return unknown_key("belongs to no model")
        if directory == CHANGES_DIR and len(rest) == 1:
            match = _CHANGE_SET.fullmatch(rest[0])
            return (
                KeyInfo(KeyKind.CHANGE_SET, model.name, name=match[1]) if match else unknown_key("no change set name")
            )
        if self._layouts.get(directory) == "root":
            return self._parse_system_path(model, directory, rest[0], rest[1:])
        return unknown_key("no key of this library")

    def _parse_in_collection(self, model: ModelDef, rest: list[str]) -> KeyInfo:
        first = rest[0]
        if first in self._layouts:
            return self._parse_system_directory(model, rest)
        if first.startswith(".") and first not in (".", ".."):
            return self._parse_table(model, rest)
        if model.is_singleton:
            if rest == [model.file]:
                return KeyInfo(KeyKind.DOCUMENT, model.name, SINGLETON_ID)
            return unknown_key("lies beside a singleton's document")
        if len(rest) > 2 and self._layouts.get(rest[1]) == "inline":
            return self._parse_system_path(model, rest[1], first, rest[2:])
        return _parse_document(model, rest)

    def _parse_system_directory(self, model: ModelDef, rest: list[str]) -> KeyInfo:
        """`.oplog/<id>/<file>` of the collection layout, or `.oplog/<file>` of an inline singleton."""
        layout = self._layouts[rest[0]]
        if layout == "collection" and len(rest) > 2:
            return self._parse_system_path(model, rest[0], rest[1], rest[2:])
        if layout == "inline" and model.is_singleton:
            return self._parse_system_path(model, rest[0], SINGLETON_ID, rest[1:])
        return unknown_key("no key of this library")

    def _parse_system_path(self, model: ModelDef, directory: str, segment: str, rest: list[str]) -> KeyInfo:
        """What an entity's system directory holds: a file, or a time mark or an archive one level deeper."""
        id = decode_id(segment)  # noqa: A001  # as everywhere here
        if id is None:
            return unknown_key(segment_fault(segment))
        if len(rest) == 1:
            return self._parse_system_file(model, directory, id, rest[0])
        if directory == OPLOG_DIR and len(rest) == 2 and not model.id_problem(id):
            inner, file = rest
            packed = ArchiveName.of_mark(file) if inner == TIMES_DIR else ArchiveName.parse(file)
            seq = marked_seq(file) if packed is None else packed.first
            if inner == TIMES_DIR and seq is not None:
                return KeyInfo(KeyKind.TIME_MARK, model.name, id, seq=seq, name=file)
            if inner == ARCHIVE_DIR and packed is not None:
                return KeyInfo(KeyKind.ARCHIVE, model.name, id, seq=packed.first, name=file)
        return unknown_key("no key of this library")

    def _parse_system_file(self, model: ModelDef, directory: str, id: str, file: str) -> KeyInfo:
        if model.id_problem(id):
            return unknown_key(f"id {id!r} {model.id_problem(id)}")
        if directory == OPLOG_DIR:
            match = _SEQ.fullmatch(file)
            if match and int(match[1]):
                return KeyInfo(KeyKind.OPLOG, model.name, id, seq=int(match[1]))
        elif directory == SNAPSHOTS_DIR:
            match = _SNAPSHOT.fullmatch(file)
            if match:
                return KeyInfo(KeyKind.SNAPSHOT, model.name, id, name=match[1])
        elif file == TOMBSTONE:
            return KeyInfo(KeyKind.TOMBSTONE, model.name, id)
        elif file == model.file:
            return KeyInfo(KeyKind.TRASH, model.name, id)
        return unknown_key(f"no file name of {directory}")

    def _parse_table(self, model: ModelDef, rest: list[str]) -> KeyInfo:
        match rest:
            case [".worm"]:
                return KeyInfo(KeyKind.SENTINEL, model.name)
            case [".worm.manifest.json"]:
                return KeyInfo(KeyKind.MANIFEST, model.name)
            case [".worm.heads.json"]:
                return KeyInfo(KeyKind.HEADS, model.name)
            case [".worm.manifest", file] if piece := _MANIFEST_PIECE.fullmatch(file):
                return KeyInfo(KeyKind.MANIFEST, model.name, name=piece[1])
            case [".worm.lake", file] if _LAKE_PIECE.fullmatch(file):
                return KeyInfo(KeyKind.LAKE, model.name, name=file)
            case [".worm.lake", "_delta_log", file] if _LAKE_LOG.fullmatch(file):
                return KeyInfo(KeyKind.LAKE, model.name, name=f"_delta_log/{file}")
            case [".worm.heads", file] if piece := _HEADS_PIECE.fullmatch(file):
                return KeyInfo(KeyKind.HEADS, model.name, name=piece[1])
            case [".worm.index", *inner]:
                return self._parse_index(model, inner)
        return unknown_key("no key of this library")

    def _parse_index(self, model: ModelDef, rest: list[str]) -> KeyInfo:
        match rest:
            case [file] if file.endswith(".json"):
                field = unescape_field(file.removesuffix(".json"))
                if field is not None:
                    return KeyInfo(KeyKind.INDEX, model.name, field=field)
            case [escaped, file] if piece := _INDEX_PIECE.fullmatch(file):
                field = unescape_field(escaped)
                if field is not None:
                    return KeyInfo(KeyKind.INDEX, model.name, name=piece[1], field=field)
            case [escaped, ".claims", digest] if _SHA256.fullmatch(digest):
                field = unescape_field(escaped)
                if field is not None:
                    return KeyInfo(KeyKind.CLAIM, model.name, name=digest, field=field)
        return unknown_key("no key of this library")


def _parse_document(model: ModelDef, rest: list[str]) -> KeyInfo:
    odd = any(segment in ("", ".", "..") for segment in rest[:-1])
    if rest[-1] != model.file or not (len(rest) == 2 or odd):
        return unknown_key("lies beside documents but is not one")
    if odd:
        return unknown_key("has a path segment that is empty, '.' or '..'", model.name, "/".join(rest[:-1]))
    segment = rest[0]
    named = decode_id(segment)
    if named is None:
        return unknown_key(segment_fault(segment), model.name, segment)
    problem = model.id_problem(named)
    if problem:
        return unknown_key(f"id {named!r} {problem}", model.name, named)
    return KeyInfo(KeyKind.DOCUMENT, model.name, named)


def segment_fault(segment: str) -> str:
    """Why a segment is not a valid id, and the right segment for the id that was probably meant."""
    meant = unescape_id(segment)
    fault = f"{segment!r} has a broken escape" if meant is None else f"{segment!r} is not the escaped form of an id"
    id = segment if meant is None else meant  # noqa: A001  # as everywhere here
    try:
        return f"{fault}: in keys, the id {id!r} is {encode_id(check_safe(id))!r}"
    except Invalid as reason:
        return reason.message


def unknown_key(reason: str, model: str | None = None, id: str | None = None) -> KeyInfo:
    return KeyInfo(KeyKind.UNKNOWN, model=model, id=id, reason=reason)


def mark_name(ts: str, seq: int) -> str | None:
    """The name of the mark of entry `seq`, made at `ts`; None if `ts` does not have the format of
    `clock.iso_seconds`."""
    left = seconds_left(ts)
    return None if left is None else f"{left}-{_SEQ_END - seq:019d}"


def seconds_left(ts: str) -> str | None:
    """The common prefix of the names of all marks of this second, and of no others."""
    moment = moment_of(ts) if _TIME.fullmatch(ts) else None
    return None if moment is None else f"{(_END - moment) // timedelta(seconds=1):012d}"


def marked_seq(name: str) -> int | None:
    """The seq in the name of a mark; None for any other name."""
    match = _MARK_NAME.fullmatch(name)
    return _SEQ_END - int(match[1]) if match and int(match[1]) else None


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """The parts of an archive's name: the seqs of its first and last entry, and the hash of its bytes."""

    first: int
    last: int
    digest: str

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last

    @property
    def file(self) -> str:
        return f"{self.first:04d}-{self.last:04d}-{self.digest}.ndjson"

    def mark(self, ts: str) -> str | None:
        """The name of its time mark; `ts` is the time of its first entry. None if that time has an unusual format."""
        name = mark_name(ts, self.first)
        return None if name is None else f"{name}-{self.last:019d}-{self.digest}"

    @classmethod
    def parse(cls, file: str) -> ArchiveName | None:
        match = _ARCHIVE.fullmatch(file)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            return None
        return cls(int(match[1]), int(match[2]), match[3])

    @classmethod
    def of_mark(cls, name: str) -> ArchiveName | None:
        """The archive that a time mark points to; None for the mark of an entry, and for any other name."""
        match = _ARCHIVE_MARK.fullmatch(name)
        first = marked_seq(match[1]) if match else None
        if match is None or first is None or first > int(match[2]):
            return None
        return cls(first, int(match[2]), match[3])


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def escape_field(field: str) -> str:
    """The file name (without `.json`) of a field's index; `Invalid` if the name is empty or too long."""
    _check_text(field, "field")
    try:
        raw = field.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"field {show(field)} contains a lone surrogate") from error
    escaped = "".join(
        chr(byte) if byte in _PLAIN and not (at == 0 and byte == _DOT) else f"~{byte:02X}"
        for at, byte in enumerate(raw)
    )
    if not 1 <= len(escaped) <= FIELD_FILE_BYTES_MAX:
        raise Invalid(f"field {show(field)} must have 1 to {FIELD_FILE_BYTES_MAX} bytes as a file name")
    return escaped


def unescape_field(name: str) -> str | None:
    """The field of a file name, or None if no field has this file name."""
    if not _ESCAPED.fullmatch(name) or len(name) > FIELD_FILE_BYTES_MAX:
        return None
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), name.encode("ascii"))
    try:
        field = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return field if escape_field(field) == name else None
