"""What is recorded about an entity: oplog entries, heads, and the change sets that bring changes to the tables.

- *entry*: the immutable JSON object `NNNN.json` that says what happened. `metadata.etag` and `metadata.versionId` name
  the object version that it records. They are the idempotency record: a worker that finds its version already named
  under a seq knows that the work is done.
- *heads*: `.worm.heads.json` beside the manifest, one line per entity. Only a hint: it saves capture the search for
  the tail and, for a write of ours, the version listing. Missing or stale heads cost requests, never correctness. It is
  written after manifest and indexes, so they know every head that it names.
- *change set*: the message from one batch of capture to the tables worker, in one object: entities whose newest entry
  is newer than the table, with the row of each. It is written after the entries, so everything in it is already
  recorded. Folding it twice does no harm, because a row applies only if its seq is newer. A model without oplog has no
  seq: its changes only name the entity, and the fold reads the document itself.
- *damaged entity*: one whose history cannot be continued: an object of its oplog is not an entry, or entries are
  missing. Tables serve its document, as they do for a model without oplog; so its changes only name it, too. Heads list
  it as damaged, without a seq, so that it is checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal, cast

from worm.collections.difference import apply as apply_diff
from worm.errors import Corrupt
from worm.formats import JsonObject, JsonValue, Missing, dumps, field_value, loads_own, shapes
from worm.store import NULL_VERSION, Version
from worm.values import dataclass

Op = Literal["create", "update", "delete", "restore"]
Document = dict[str, JsonValue]

OPS: frozenset[str] = frozenset({"create", "update", "delete", "restore"})
SEQ_MAX = 10**19 - 1
SHAPES = "see docs/formats.md for the shape"
REBUILT = "run `worm repair` to rebuild it"
FOLDED = "the next sweep restores it; `worm repair` does so at once"

ENTRY = shapes.record(
    "an oplog entry",
    {"seq": shapes.whole_number(1, SEQ_MAX), "op": shapes.one_of(*sorted(OPS)), "ts": shapes.TIME},
    {
        "actor": shapes.nullable(shapes.TEXT),
        "snapshot": shapes.nullable(shapes.OBJECT),
        "diff": shapes.nullable(
            shapes.object_of(shapes.tuple_of("a pair", before=shapes.ANYTHING, after=shapes.ANYTHING))
        ),
        "absent": shapes.nullable(shapes.object_of(shapes.list_of(shapes.TEXT))),
        "metadata": shapes.nullable(
            shapes.record(
                "an object", {}, {"etag": shapes.nullable(shapes.TEXT), "versionId": shapes.nullable(shapes.TEXT)}
            )
        ),
    },
)
"""The content may still be false, but every value has the right type."""
HEAD = shapes.tuple_of(
    "a head",
    seq=shapes.whole_number(1, SEQ_MAX),
    etag=shapes.nullable(shapes.TEXT),
    version=shapes.nullable(shapes.TEXT),
    alive=shapes.FLAG,
    time=shapes.TIME,
)
HEADS = shapes.record(
    "heads that this version of worm reads",
    {"version": shapes.one_of(1), "model": shapes.TEXT, "revision": shapes.WHOLE, "heads": shapes.object_of(HEAD)},
    {"damaged": shapes.list_of(shapes.TEXT), "partial": shapes.FLAG},
)
CHANGE = shapes.record("a change", {"id": shapes.TEXT}, {"head": HEAD, "row": shapes.nullable(shapes.OBJECT)})
CHANGES = shapes.record(
    "a change set that this version of worm reads",
    {"version": shapes.one_of(1), "model": shapes.TEXT, "changes": shapes.list_of(CHANGE)},
)


@dataclass(frozen=True, slots=True)
class OplogEntry:
    """One change. `snapshot` is the whole document (create, delete, restore; for an update only at a checkpoint),
    `diff` has the changed fields (update), and `absent` says which nulls of `diff` mean 'no such field'.

    Examples:
        >>> entry = customers.get_history("acme")[0]
        >>> entry.seq, entry.op, entry.snapshot["name"]
        (1, 'create', 'Acme')
    """

    OPS: ClassVar[frozenset[str]] = OPS
    SEQ_MAX: ClassVar[int] = SEQ_MAX

    seq: int
    op: Op
    ts: str
    actor: str | None = None
    snapshot: Document | None = None
    diff: Mapping[str, list[JsonValue]] | None = None
    absent: Mapping[str, list[str]] | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def version_id(self) -> str | None:
        return cast("str | None", self.metadata.get("versionId"))

    @property
    def etag(self) -> str | None:
        return cast("str | None", self.metadata.get("etag"))

    @property
    def reason(self) -> str | None:
        """The reason that the writer gave."""
        said = self.metadata.get("reason")
        return said if isinstance(said, str) else None

    @property
    def is_base(self) -> bool:
        """Whether it gives the document without the entries before it."""
        return self.op == "delete" or self.snapshot is not None

    def __repr__(self) -> str:
        by = f" by {self.actor}" if self.actor else ""
        named = self.diff if self.diff is not None else self.snapshot
        fields = f": {', '.join(named)}" if named else ""
        return f"<{type(self).__name__} {self.about()}seq {self.seq}, {self.op} at {self.ts}{by}{fields}>"

    def about(self) -> str:
        """The document's name, if it is known."""
        return ""

    def to_bytes(self) -> bytes:
        shape: dict[str, JsonValue] = {"seq": self.seq, "op": self.op, "ts": self.ts}
        optional: dict[str, object] = {
            "actor": self.actor,
            "snapshot": self.snapshot,
            "diff": self.diff,
            "absent": self.absent,
        }
        shape.update({name: cast(JsonValue, value) for name, value in optional.items() if value is not None})
        if self.metadata:
            shape["metadata"] = dict(self.metadata)
        return dumps(shape)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> OplogEntry:
        return cls.from_shape(loads_own(body, key=key), key)

    @classmethod
    def from_shape(cls, shape: JsonObject, key: str) -> OplogEntry:
        return cls.from_shapes([shape], key)[0]

    @classmethod
    def from_shapes(cls, stored: Sequence[JsonObject], key: str) -> list[OplogEntry]:
        """Entries of one object, checked at once."""
        for shape in () if ENTRY.fit(stored) else stored:
            shapes.check(shape, ENTRY, key, hint=SHAPES)
        return [cls._checked(shape) for shape in stored]

    @classmethod
    def _checked(cls, shape: JsonObject) -> OplogEntry:
        return cls(
            seq=cast(int, shape["seq"]),
            op=cast(Op, shape["op"]),
            ts=cast(str, shape["ts"]),
            actor=cast("str | None", shape.get("actor")),
            snapshot=cast("Document | None", shape.get("snapshot")),
            diff=cast("Mapping[str, list[JsonValue]] | None", shape.get("diff")),
            absent=cast("Mapping[str, list[str]] | None", shape.get("absent")),
            metadata=cast("Mapping[str, JsonValue]", shape.get("metadata") or {}),
        )

    def applied_to(self, before: Document | None, key: str) -> Document | None:
        """The document after this entry; `before` is the document that the earlier entries gave."""
        if self.op == "delete":
            return None
        if self.snapshot is not None:
            return self.snapshot
        if self.op != "update":
            raise Corrupt(f"a {self.op} entry has no snapshot", key=key)
        if before is None:
            raise Corrupt("an update entry has no document before it", key=key)
        return self.changed(before, key)

    def changed(self, before: Document, key: str) -> Document:
        """The document after the diff of an update."""
        try:
            return apply_diff(before, self.diff or {}, self.absent or {})
        except Corrupt as damage:
            damage.key = damage.key or key
            raise

    @property
    def exact_name(self) -> tuple[str, str]:
        """The same as of the `Version` that it names."""
        return Version.name_of(self.version_id, self.etag)


@dataclass(frozen=True, slots=True)
class Head:
    """The last recorded state of an entity: the newest entry's seq and the object version that it names."""

    SHAPE: ClassVar[shapes.Kind] = HEAD

    seq: int
    etag: str | None
    version_id: str | None
    live: bool
    ts: str

    @classmethod
    def of(cls, entry: OplogEntry) -> Head:
        return cls(entry.seq, entry.etag, entry.version_id, entry.op != "delete", entry.ts)

    @classmethod
    def decode(cls, shape: Sequence[JsonValue]) -> Head:
        """From a checked shape."""
        return cls(*cast("tuple[int, str | None, str | None, bool, str]", shape))

    def encode(self) -> list[JsonValue]:
        return [self.seq, self.etag, self.version_id, self.live, self.ts]

    def names(self, version: Version) -> bool:
        """Whether this head records the version. Without a version id, the etag has to decide."""
        if not version.is_version(self.version_id):
            return False
        if version.version_id not in (None, NULL_VERSION):
            return True
        return self.live is not version.is_delete_marker and (self.etag or "") == version.etag


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model's entities, deleted ones included. `damaged`: entities that have a history but no head.
    `partial`: other entities may also have a history, because the file was lost and not all entities were listed
    since."""

    model: str
    heads: dict[str, Head] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    partial: bool = False

    @property
    def revision(self) -> int:
        """Sum of all seqs: grows with every recorded change, so content never repeats."""
        return sum(head.seq for head in self.heads.values())

    @property
    def count(self) -> int:
        return sum(head.live for head in self.heads.values())

    @property
    def known(self) -> int:
        """The number of known entities, including deleted ones."""
        return len(self.heads) + len(self.damaged)

    @property
    def last_updated(self) -> str:
        return max((head.ts for head in self.heads.values()), default="")

    def get(self, entity_id: str) -> Head | None:
        return self.heads.get(entity_id)

    def folded(self, changes: Iterable[Change]) -> Heads | None:
        """These heads with the newer ones of the changes; None if all are already known."""
        heads, damaged = dict(self.heads), set(self.damaged)
        for change in changes:
            if change.damage is not None:
                damaged.add(change.id)
                heads.pop(change.id, None)
                continue
            known = (self.heads.get(change.id), heads.get(change.id))  # the changes may have several of one entity
            if change.head is not None and all(one is None or change.head.seq > one.seq for one in known):
                heads[change.id] = change.head
                damaged.discard(change.id)
        same = heads == self.heads and damaged == self.damaged
        return None if same else Heads(self.model, heads, frozenset(damaged), self.partial)

    def weight(self, entity_id: str) -> int:
        """Heads have about the same size, so their number gives the total size."""
        return 0

    def ids(self) -> list[str]:
        """All known ids, including damaged entities, in order."""
        return sorted({*self.heads, *self.damaged})

    def merged(self, others: Iterable[Heads]) -> Heads:
        """These heads with newer ones from the others."""
        heads, damaged = dict(self.heads), set(self.damaged)
        for other in others:
            for entity_id, head in other.heads.items():
                known = heads.get(entity_id)
                if known is None or head.seq > known.seq:
                    heads[entity_id] = head
                    damaged.discard(entity_id)
        return Heads(self.model, heads, frozenset(damaged), self.partial)

    @classmethod
    def joined(cls, model: str, parts: Iterable[Heads]) -> Heads:
        """Combines parts with disjoint ranges."""
        listed = list(parts)
        damaged = frozenset(entity_id for part in listed for entity_id in part.damaged)
        heads = {entity_id: head for part in listed for entity_id, head in part.heads.items()}
        return cls(model, heads, damaged, any(part.partial for part in listed))

    def part(self, ids: Iterable[str]) -> Heads:
        wanted = list(ids)
        heads = {entity_id: self.heads[entity_id] for entity_id in wanted if entity_id in self.heads}
        damaged = self.damaged & frozenset(wanted) if self.damaged else self.damaged
        return Heads(self.model, heads, damaged, self.partial)

    def encode(self) -> bytes:
        heads: dict[str, JsonValue] = {entity_id: head.encode() for entity_id, head in self.heads.items()}
        shape: dict[str, JsonValue] = {"version": 1, "model": self.model, "revision": self.revision, "heads": heads}
        if self.damaged:
            shape["damaged"] = [*sorted(self.damaged)]
        if self.partial:
            shape["partial"] = True
        return dumps(shape)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Heads:
        return cls.of_shape(loads_own(body, key=key), key)

    @classmethod
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Heads:
        """A revision that is not the sum of the seqs is damage: a wrong seq would create a gap in a history."""
        shapes.check(shape, HEADS, key, hint=REBUILT)
        heads = cast("dict[str, list[JsonValue]]", shape["heads"])
        damaged = frozenset(cast("list[str]", shape.get("damaged", [])))
        known = {entity_id: Head.decode(head) for entity_id, head in heads.items()}
        found = cls(str(shape["model"]), known, damaged, shape.get("partial") is True)
        if found.revision != shape["revision"]:
            raise Corrupt(f"revision {shape['revision']} is not the sum of its seqs", key=key, hint=REBUILT)
        return found


Row = dict[str, JsonValue]
_BESIDE_BYTES = 48


@dataclass(frozen=True, slots=True)
class Change:
    """The newest state of one entity. `head` is None for a model without oplog; `row` is None when deleted.

    For a damaged entity, `damage` says why its history cannot be continued. It has no head either; `row`, `etag` and
    `modified` describe its document as it was read (`etag` None: there is none)."""

    id: str
    head: Head | None
    row: Row | None
    damage: Corrupt | None = None
    etag: str | None = None
    modified: str = ""

    @staticmethod
    def weight_of(entity_id: str, row: Row | None) -> int:
        """The approximate bytes of an id in a manifest: its row, and the id with seq and etag."""
        id_bytes = len(entity_id.encode("utf-8", "surrogatepass"))
        return 2 * id_bytes + _BESIDE_BYTES + (0 if row is None else len(dumps(row)))


def project(document: Document, fields: Sequence[str]) -> Row:
    """The manifest row of a document: the table's fields that it has. A dotted field keeps its dotted name."""
    row: Row = {}
    for name in fields:
        value = field_value(document, name)
        if not isinstance(value, Missing):
            row[name] = value
    return row


APART = "."
"""The member of a row that holds the document's fields with a dot in their own name: elsewhere in a row, a dotted name
is a path."""


def table_row(document: Document, fields: Sequence[str]) -> Row:
    """The row of a document that holds all its fields; the named ones may be paths into it. Without the paths, and with
    the separate fields put back, it is the document again."""
    row = project(document, fields)
    row |= {name: value for name, value in document.items() if "." not in name and name != "id"}
    apart: Row = {name: value for name, value in document.items() if "." in name}
    if apart:
        row[APART] = apart
    return row


CUT = ".cut"
"""The member of a row that lists what is missing although the document may have it: a list of names, or true for
everything that the row lacks. No name in a document can collide with it: names with dots are kept separately."""
_SEPARATORS = len(b'"":,')


def cut_row(row: Row, named: Sequence[str], field_max: int, row_max: int) -> Row:
    """The row without values of more than `field_max` bytes of canonical JSON, and without the largest other values
    while it has more than `row_max` bytes. If the names of the missing values alone are too many, it keeps the named
    fields that fit. It depends only on the row, so that all code that makes rows makes the same ones."""
    size = len(dumps(row))
    if size <= min(field_max, row_max):
        return row
    sizes = {name: len(dumps(value)) for name, value in row.items()}
    cut = sorted(name for name, of_value in sizes.items() if of_value > field_max)
    size -= sum(sizes[name] - _SEPARATORS for name in cut)  # the name stays, in the list
    for name in sorted(sizes.keys() - set(cut), key=lambda one: (-sizes[one], one)):
        if size <= row_max or sizes[name] <= _SEPARATORS:
            break
        cut.append(name)
        size -= sizes[name] - _SEPARATORS
    gone = set(cut)
    kept = {name: value for name, value in row.items() if name not in gone}
    found: Row = {**kept, CUT: cast(JsonValue, sorted(cut))} if cut else row
    return found if len(dumps(found)) <= row_max else _named_only(row, sizes, named, field_max, row_max)


def _named_only(row: Row, sizes: Mapping[str, int], named: Sequence[str], field_max: int, row_max: int) -> Row:
    """As many of the smallest named fields as fit."""
    found: Row = {CUT: True}
    left = row_max - len(dumps(found))
    for name in sorted((one for one in named if one in row), key=lambda one: (sizes[one], one)):
        left -= sizes[name] + len(dumps(name)) + _SEPARATORS
        if left < 0 or sizes[name] > field_max:
            break
        found[name] = row[name]
    return found


def is_cut(row: Mapping[str, JsonValue], field: str) -> bool:
    """Whether the document may have something at this path that its row lacks. A value that the row has under the
    path's own name is complete, whatever happened to its parent object."""
    cut = row.get(CUT)
    if cut is None or field == "id" or field in row:
        return False
    first = field.split(".", 1)[0]
    return (field in cut or first in cut) if isinstance(cut, list) else first not in row


CHANGE_SET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes of one model that one object holds."""

    model: str
    changes: list[Change]

    @classmethod
    def split(cls, model: str, changes: Iterable[Change]) -> Iterator[ChangeSet]:
        """Sets of a limited size. Most batches have one."""
        some, size = list[Change](), 0
        for change in changes:
            size += Change.weight_of(change.id, change.row)
            if some and size > CHANGE_SET_BYTES:
                yield cls(model, some)
                some, size = [], Change.weight_of(change.id, change.row)
            some.append(change)
        if some:
            yield cls(model, some)

    def encode(self) -> bytes:
        encoded: list[JsonValue] = []
        for change in self.changes:
            shape: dict[str, JsonValue] = {"id": change.id}  # for a damaged entity, nothing else follows
            if change.head is not None:
                shape["head"] = change.head.encode()
                shape["row"] = change.row
            encoded.append(shape)
        return dumps({"version": 1, "model": self.model, "changes": encoded})

    @classmethod
    def decode(cls, body: bytes, key: str) -> ChangeSet:
        shape = loads_own(body, key=key)
        shapes.check(shape, CHANGES, key, hint=FOLDED)
        listed = cast("list[Mapping[str, JsonValue]]", shape["changes"])
        return cls(cast(str, shape["model"]), [_decode_change(item) for item in listed])


def _decode_change(shape: Mapping[str, JsonValue]) -> Change:
    head = shape.get("head")
    return Change(
        id=cast(str, shape["id"]),
        head=None if head is None else Head.decode(cast("list[JsonValue]", head)),
        row=cast("Row | None", shape.get("row")),
    )
