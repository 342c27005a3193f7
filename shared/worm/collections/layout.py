"""Every key of a bucket, built and parsed in one place.

Vocabulary
- *document*: `org/customers/<id>/<file>`; a singleton's is `org/settings/<file>` and its id is `_`.
- *system directory*: `.oplog`, `.snapshots`, `.worm.trash`, in one of three layouts: `root` (`.oplog/customers/<id>/`),
  `collection` (`org/customers/.oplog/<id>/`), `inline` (`org/customers/<id>/.oplog/`).
- *system key*: any key with a segment that starts with a dot, or under `db/`. Documents never have one, so workers drop
  them before any request.

Invariants: `parse(build(...))` gives back what was built, for every kind and layout; `parse` never raises. A builder
refuses an id that is unsafe as a key segment; `document_key` also one that is not of the model's type.
"""

from __future__ import annotations

import re

from worm.collections.archive_names import ArchiveName
from worm.collections.field_names import escape_field, unescape_field
from worm.collections.ids import SINGLETON_ID, check_id, check_safe, typed_problem
from worm.collections.key_info import LOG_PREFIX, KeyInfo, KeyKind, is_system_key, unknown_key
from worm.collections.mark_names import marked_seq
from worm.errors import Invalid
from worm.schema import Layout, ModelDef, Schema

BUCKET_SENTINEL = ".worm"
SCHEMA_KEY = ".worm.schema.json"
CHANGES_DIR = ".worm.changes"
OPLOG_DIR = ".oplog"
TIMES_DIR = ".times"
ARCHIVE_DIR = ".archive"
SNAPSHOTS_DIR = ".snapshots"
TRASH_DIR = ".worm.trash"
TOMBSTONE = ".worm.tombstone"
MANIFEST_FILE = ".worm.manifest.json"
MANIFEST_DIR = ".worm.manifest"
HEADS_FILE = ".worm.heads.json"
HEADS_DIR = ".worm.heads"
INDEX_DIR = ".worm.index"
CLAIMS_DIR = ".claims"

__all__ = ["BUCKET_SENTINEL", "SCHEMA_KEY", "SINGLETON_ID", "KeyInfo", "KeyKind", "StorageResolver", "is_system_key"]

_SEQ = re.compile(r"([0-9]{4}|[1-9][0-9]{4,18})\.json")
_SNAPSHOT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z)\.json")
_MANIFEST_PIECE = re.compile(
    r"(_meta|(?:partition-(?:0|[1-9][0-9]{0,5})|delta|directory|stage)-[0-9a-f]{16})\.json"
    r"|partition-(?:0|[1-9][0-9]{0,5})-[0-9a-f]{16}\.columns"
)
_HEADS_PIECE = re.compile(r"((?:heads-(?:0|[1-9][0-9]{0,5})|delta|directory|stage)-[0-9a-f]{16})\.json")
_INDEX_PIECE = re.compile(r"(part-(?:0|[1-9][0-9]{0,5})-[0-9a-f]{16})\.json")
_CHANGE_SET = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{25})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class StorageResolver:
    """The keys of one schema. Models are named by their schema name."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._layouts: dict[str, Layout] = {
            OPLOG_DIR: schema.storage.oplog_layout,
            SNAPSHOTS_DIR: schema.storage.snapshots_layout,
            TRASH_DIR: schema.storage.trash_layout,
        }
        self._by_directory = {model.location.directory: model for model in schema.models.values()}
        self._by_collection = {model.collection: model for model in schema.models.values()}

    # -- building

    def collection_path(self, model: str) -> str:
        """`org/customers/`."""
        return self._schema.model(model).location.directory + "/"

    def entity_path(self, model: str, id: str) -> str:
        """`org/customers/<id>/`: the directory of the document."""
        definition = self._schema.model(model)
        check_safe(id)
        if definition.is_singleton:
            check_id(None, id)
            return definition.location.directory + "/"
        return f"{definition.location.directory}/{id}/"

    def document_key(self, model: str, id: str) -> str:
        definition = self._schema.model(model)
        check_id(definition.id_type, id)
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
        """The prefix under which all oplog entries of the model lie (inline: among the documents)."""
        return self._system_root(OPLOG_DIR, model)

    def snapshot_root(self, model: str) -> str:
        """The prefix under which all snapshots of the model lie (inline: among the documents)."""
        return self._system_root(SNAPSHOTS_DIR, model)

    def trash_root(self, model: str) -> str:
        """The prefix under which the trash of the model lies (inline: among the documents)."""
        return self._system_root(TRASH_DIR, model)

    def snapshot_path(self, model: str, id: str) -> str:
        return self._system_path(SNAPSHOTS_DIR, model, id)

    def trash_path(self, model: str, id: str) -> str:
        return self._system_path(TRASH_DIR, model, id)

    def oplog_key(self, model: str, id: str, seq: int) -> str:
        """`…/0001.json`: at least four digits. Order entries by number: names sort wrong from 10000 on."""
        if not 1 <= seq < 10**19:
            raise Invalid(f"oplog seq must be from 1 to 10^19 - 1, not {seq}")
        return f"{self.oplog_path(model, id)}{seq:04d}.json"

    def time_mark_key(self, model: str, id: str, name: str) -> str:
        """`name` is of `mark_names.mark_name` or `ArchiveName.mark`."""
        if marked_seq(name) is None and ArchiveName.of_mark(name) is None:
            raise Invalid(f"{name!r} is no name of a time mark")
        return self.time_mark_path(model, id) + name

    def snapshot_key(self, model: str, id: str, name: str) -> str:
        """`name` is an ISO 8601 time in UTC, `2026-02-24T12:00:00Z`, with a fraction where needed."""
        file = f"{name}.json"
        if not _SNAPSHOT.fullmatch(file):
            raise Invalid(f"snapshot name {name!r} must be a time such as 2026-02-24T12:00:00Z")
        return self.snapshot_path(model, id) + file

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

    def index_key(self, model: str, field: str) -> str:
        return f"{self.collection_path(model)}{INDEX_DIR}/{escape_field(field)}.json"

    def claim_key(self, model: str, field: str, digest: str) -> str:
        """The claim of a unique value; `digest` is the SHA-256 of its canonical bytes in lower-case hex."""
        if not _SHA256.fullmatch(digest):
            raise Invalid(f"claim digest {digest!r} must be 64 lower-case hex digits")
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
        file = f"{name}.json"
        if not _CHANGE_SET.fullmatch(file):
            raise Invalid(f"change set name {name!r} must be a ULID")
        return self.change_set_path(model) + file

    def collection_sentinel_key(self, model: str) -> str:
        return self.collection_path(model) + BUCKET_SENTINEL

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
        if layout == "collection":
            return f"{self.collection_path(model)}{directory}/{id}/"
        return f"{directory}/{self._schema.model(model).collection}/{id}/"

    # -- parsing

    def parse(self, key: str) -> KeyInfo:
        """What the key is. Never raises, whatever the text."""
        if key == BUCKET_SENTINEL:
            return KeyInfo(KeyKind.SENTINEL)
        if key == SCHEMA_KEY:
            return KeyInfo(KeyKind.SCHEMA)
        if key.startswith(LOG_PREFIX):
            return KeyInfo(KeyKind.LOG, name=key[len(LOG_PREFIX) :])
        segments = key.split("/")
        if segments[0].startswith("."):
            return self._parse_root(segments)
        for length in range(len(segments) - 1, 0, -1):
            model = self._by_directory.get("/".join(segments[:length]))
            if model is not None:
                return self._parse_in_collection(model, segments[length:])
        return unknown_key("belongs to no model")

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

    def _parse_system_path(self, model: ModelDef, directory: str, id: str, rest: list[str]) -> KeyInfo:
        """What lies in an entity's system directory: a file, or a time mark or an archive one level deeper."""
        if len(rest) == 1:
            return self._parse_system_file(model, directory, id, rest[0])
        if directory == OPLOG_DIR and len(rest) == 2 and not typed_problem(model.id_type, id):
            inner, file = rest
            packed = ArchiveName.of_mark(file) if inner == TIMES_DIR else ArchiveName.parse(file)
            seq = marked_seq(file) if packed is None else packed.first
            if inner == TIMES_DIR and seq is not None:
                return KeyInfo(KeyKind.TIME_MARK, model.name, id, seq=seq, name=file)
            if inner == ARCHIVE_DIR and packed is not None:
                return KeyInfo(KeyKind.ARCHIVE, model.name, id, seq=packed.first, name=file)
        return unknown_key("no key of this library")

    def _parse_system_file(self, model: ModelDef, directory: str, id: str, file: str) -> KeyInfo:
        if typed_problem(model.id_type, id):
            return unknown_key(f"id {id!r} {typed_problem(model.id_type, id)}")
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
                return KeyInfo(KeyKind.MANIFEST, model.name, name=piece[1] or file)
            case [".worm.heads", file] if piece := _HEADS_PIECE.fullmatch(file):
                return KeyInfo(KeyKind.HEADS, model.name, name=piece[1])
            case [".worm.index", file] if file.endswith(".json"):
                field = unescape_field(file.removesuffix(".json"))
                if field is not None:
                    return KeyInfo(KeyKind.INDEX, model.name, field=field)
            case [".worm.index", escaped, file] if piece := _INDEX_PIECE.fullmatch(file):
                field = unescape_field(escaped)
                if field is not None:
                    return KeyInfo(KeyKind.INDEX, model.name, name=piece[1], field=field)
            case [".worm.index", escaped, ".claims", digest] if _SHA256.fullmatch(digest):
                field = unescape_field(escaped)
                if field is not None:
                    return KeyInfo(KeyKind.CLAIM, model.name, name=digest, field=field)
        return unknown_key("no key of this library")


def _parse_document(model: ModelDef, rest: list[str]) -> KeyInfo:
    named = "/".join(rest[:-1])
    in_place = len(rest) == 2 or any(segment in ("", ".", "..") for segment in rest[:-1])
    if rest[-1] != model.file or not in_place:
        return unknown_key("lies beside documents but is not one")
    problem = typed_problem(model.id_type, named)
    if problem:
        return unknown_key(f"id {named!r} {problem}", model.name, named)
    return KeyInfo(KeyKind.DOCUMENT, model.name, named)
