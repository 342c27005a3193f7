"""A commit of a space in the log: one record that holds each document once, and determines its pages.

    {"op":"space","seq":9,"at":1767225600000,"session":"01JG…","local":4,
     "ops":[{"op":"set","id":"a","value":{…}}],"heads":[[2,3,2,9,40,9]]}

The content of a page depends only on the record. So every reader and every worker makes the same pages from it, without
knowing what a space means. Names of branches, entities and sessions have no tabs; a tab separates them.

    m                                   the end of the order of commits
    c <seq>                             a commit
    k <session> <local>                 the seq of the commit that a session made under its number
    b <name>                            a branch; `b <name> e`: the newest commit with operations on it
    r <branch> <id> <seq> <op index>    a revision: the document of a `set`, the list of a `patch`
    h <branch> <id>                     an entity on a branch: its newest revisions, and how many there are
    i <branch> <id> <number>            a run of older revisions
    s <branch> <id> <seq>               a snapshot

The space itself also writes `x <hash>`, a blob: its row, and where its bytes are.

An *item* describes a revision: seq, op index and *kind* (the place of its op in `OPS`, plus `SNAPPED` if there is a
snapshot of that commit). A head has the newest items; `RUN` of them become a page, a *run*. Runs of an entity are
numbered, so any run can be found by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, dumps, loads_own

OP = "space"
OPS = ("set", "patch", "delete")
DATA = {"set": "value", "patch": "patches"}
SNAPPED = 4
RUN = 8
COMMIT = ("seq", "at", "session", "local", "branch", "ops", "reads", "resolved", "more")
"""The members of a record that its commit page contains."""
NEWEST = "m"
Item = list[int]


def commit_page(seq: int) -> str:
    return f"c\t{seq:020d}"


def session_page(session_id: str, local_seq: int) -> str:
    return f"k\t{session_id}\t{local_seq}"


def branch_page(name: str) -> str:
    return f"b\t{name}"


def branch_end_page(name: str) -> str:
    return f"b\t{name}\te"


def revision_page(branch: str, id: str, seq: int, op_index: int) -> str:
    return f"r\t{branch}\t{id}\t{seq:020d}\t{op_index}"


def head_page(branch: str, id: str) -> str:
    return f"h\t{branch}\t{id}"


def run_page(branch: str, id: str, number: int) -> str:
    return f"i\t{branch}\t{id}\t{number:012d}"


def snapshot_page(branch: str, id: str, seq: int) -> str:
    return f"s\t{branch}\t{id}\t{seq:020d}"


def blob_page(hash: str) -> str:
    return f"x\t{hash}"


def pages_below(start: str) -> tuple[str, str]:
    """The range of all pages whose name begins with this and a tab."""
    return f"{start}\t", f"{start}\n"  # the character after a tab


@dataclass
class ItemRun:
    """`RUN` items, the oldest first. `snapshot`: the seq of the newest snapshot up to the last of them, or 0."""

    items: list[Item]
    snapshot: int

    @classmethod
    def decode(cls, body: bytes | None, key: str) -> ItemRun:
        shape = {} if body is None else loads_own(body, key)
        items, snapshot = shape.get("items"), shape.get("snapshot")
        if not isinstance(items, list) or not isinstance(snapshot, int):
            raise Corrupt("a list of older revisions is missing or damaged", key=key)
        return cls(cast(list[Item], items), snapshot)

    def encode(self) -> bytes:
        return dumps({"items": cast(JsonValue, self.items), "snapshot": self.snapshot})


@dataclass
class EntityHead:
    """The content of an entity's head page: the number of revisions, the seq of the first, the number up to the newest
    snapshot and its seq (0 without one), and the items that are not in a run."""

    count: int = 0
    first: int = 0
    snapped: int = 0
    snapshot: int = 0
    items: list[Item] = field(default_factory=list)

    @classmethod
    def decode(cls, body: bytes, key: str) -> EntityHead:
        shape = loads_own(body, key)
        numbers, items = shape.get("numbers"), shape.get("items")
        if not isinstance(numbers, list) or len(numbers) != 4 or not isinstance(items, list):
            raise Corrupt("the head of an entity is damaged", key=key)
        return cls(*cast("tuple[int, int, int, int]", tuple(numbers)), cast(list[Item], items))

    def encode(self) -> bytes:
        return dumps({"items": cast(JsonValue, self.items), "numbers": self.numbers})

    @property
    def numbers(self) -> list[JsonValue]:
        return [self.count, self.first, self.snapped, self.snapshot]

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return self.count // RUN

    def add(self, item: Item) -> ItemRun | None:
        """Append an item; returns the run if one is full now."""
        self.first = self.first or item[0]
        self.items.append(item)
        self.count += 1
        if item[2] & SNAPPED:
            self.snapped, self.snapshot = self.count, item[0]
        if len(self.items) < RUN:
            return None
        run, self.items = ItemRun(self.items, self.snapshot), []
        return run

    def short(self, seq: int) -> list[JsonValue]:
        """The head as the record of commit `seq` has it, in small numbers: nothing for a new entity; otherwise `count`,
        `first`, the revisions and the commits since the newest snapshot, then a *code* for each item: 8 times the
        commits up to the next item (to `seq` for the last one) plus its kind. If the op index is not 0, code and op
        index are in a list."""
        if not self.count:
            return []
        codes: list[JsonValue] = []
        later = seq
        for at, op_index, kind in reversed(self.items):
            code = 8 * (later - at) + kind
            codes.append([code, op_index] if op_index else code)
            later = at
        return [self.count, self.first, self.count - self.snapped, seq - self.snapshot, *reversed(codes)]

    @classmethod
    def of_short(cls, shape: list[Any], seq: int) -> EntityHead:
        if not shape:
            return cls()
        count, first, depth, since, *codes = shape
        later, items = seq, []
        for one in reversed(codes):
            code, op_index = (one, 0) if isinstance(one, int) else one
            later -= code // 8
            items.append([later, op_index, code % 8])
        return cls(count, first, count - depth, seq - since, items[::-1])


def space_record(
    commit: JsonObject,
    heads: Mapping[str, EntityHead],
    snapshots: Mapping[str, JsonValue],
    row: JsonObject | None,
) -> JsonObject:
    """The record of a commit. `heads` are the heads before it, of every entity that it writes, in the order of its
    operations. `snapshots` are of the documents after it; True: the value of the entity's last operation. `row` is set
    if the commit creates, ends or first writes its branch."""
    seq = cast(int, commit["seq"])
    record: JsonObject = {"op": OP, **commit}
    if heads:
        record["heads"] = [head.short(seq) for head in heads.values()]
    if snapshots:
        record["snapshots"] = dict(snapshots)
    return record if row is None else {**record, "row": row}


def space_pages(record: Mapping[str, object]) -> dict[str, bytes]:
    """The pages that follow from a record; `Invalid` if it is malformed."""
    try:
        return _pages(cast(Any, record))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"the record of a space's commit is malformed: {error!r:.80}") from error


def _pages(record: Mapping[str, Any]) -> dict[str, bytes]:
    seq, at, branch = record["seq"], record["at"], record.get("branch", "")
    pages = {
        NEWEST: dumps({"at": at, "seq": seq}),
        commit_page(seq): dumps({name: record[name] for name in COMMIT if name in record}),
        session_page(record["session"], record["local"]): dumps({"seq": seq}),
    }
    if "row" in record:
        pages[branch_page(branch)] = dumps({"at": at, **record["row"]})
    if "ops" in record:
        _add_revisions(pages, record, seq, branch)
    return pages


def _add_revisions(pages: dict[str, bytes], record: Mapping[str, Any], seq: int, branch: str) -> None:
    pages[branch_end_page(branch)] = dumps({"seq": seq})
    ops, snapshots = record["ops"], record.get("snapshots", {})
    last = {op["id"]: index for index, op in enumerate(ops)}
    heads = {
        entity: EntityHead.of_short(shape, seq) for entity, shape in zip(last, record.get("heads", []), strict=True)
    }
    for index, op in enumerate(ops):
        entity, kind = op["id"], OPS.index(op["op"])
        data = None if op["op"] not in DATA else dumps(op[DATA[op["op"]]])
        if data is not None:
            pages[revision_page(branch, entity, seq, index)] = data
        is_snapped = index == last[entity] and entity in snapshots
        run = heads[entity].add([seq, index, kind | SNAPPED if is_snapped else kind])
        if run is not None:
            pages[run_page(branch, entity, heads[entity].runs - 1)] = run.encode()
        if is_snapped:
            value = snapshots[entity]
            pages[snapshot_page(branch, entity, seq)] = dumps(op["value"] if value is True else value)
    for entity, head in heads.items():
        pages[head_page(branch, entity)] = head.encode()
