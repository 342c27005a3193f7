"""Checking a space: every row that a read could use, against the records of the commits.

The records contain everything that was ever written. So each of them must exist and parse. The chain of every entity on
every branch must match them, and so must heads, snapshots, branches and the names of transactions. Blobs are read and
hashed. The backend itself checks the store below. Nothing is changed, and writers may continue: everything is as of the
newest commit at the start.

It reads everything, which nothing else in this room may do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worm.errors import Corrupt, NotFound
from worm.formats import JsonObject, dumps, loads_own
from worm.spaces import blobs
from worm.spaces.backend import Backend
from worm.spaces.branches import BACK, CREATE, END
from worm.spaces.replay import IDS_AT_ONCE, fold, line_of, load
from worm.spaces.results import Committed
from worm.spaces.rows import (
    ACTIVE,
    BLOB_META,
    DELETE,
    DELETED,
    MAIN,
    PATCH,
    SET,
    BranchRow,
    CommitRow,
    Pointer,
    RevisionRow,
    branch_name,
    moment_of,
)
from worm.store import in_chunks

_PAGE_FIRST, _PAGE_MAX, _PAGE_BYTES = 16, 500, 8 * 1024 * 1024
_AT_ONCE = 500_000
"""How many revisions are compared at a time; a space with more is read several times."""
_DATA = {SET: "value", PATCH: "patches"}

Told = tuple[int, int, str, bytes]
"""A revision according to a record: seq, op index, op, and the digest of its data."""


@dataclass(frozen=True, slots=True)
class SpaceProblem:
    """`kind` is `commit`, `revision`, `head`, `snapshot`, `branch`, `blob` or `store`."""

    kind: str
    key: str
    message: str


@dataclass(slots=True)
class SpaceReport:
    """What was checked, up to commit `seq`, and the problems found."""

    seq: int
    commits: int = 0
    revisions: int = 0
    entities: int = 0
    snapshots: int = 0
    branches: int = 0
    blobs: int = 0
    problems: list[SpaceProblem] = field(default_factory=list)
    wrong_snapshots: dict[str, set[str]] = field(default_factory=dict)
    """Ids of entities with wrong snapshots, by branch. Without them the revisions count."""

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def add(self, kind: str, key: str, message: str) -> None:
        self.problems.append(SpaceProblem(kind, key, message))


def verify(backend: Backend) -> SpaceReport:
    """Check the whole space."""
    report = SpaceReport(backend.newest().seq)
    report.problems += [SpaceProblem("store", str(backend), problem) for problem in backend.problems()]
    check = _Check(backend, report)
    check.walk()
    for part in range(check.parts):
        check.compare(part)
    check.check_branches()
    _check_blobs(backend, report)
    return report


def repair(backend: Backend) -> SpaceReport:
    """Drop the snapshots of entities that have a wrong one: they only save work. Returns the remaining problems."""
    for branch, ids in verify(backend).wrong_snapshots.items():
        for some in in_chunks(sorted(ids), IDS_AT_ONCE):
            backend.forget_snapshots(branch, some)
    return verify(backend)


class _Check:
    """One pass over the commits for their records, then one for each part of the entities."""

    def __init__(self, backend: Backend, report: SpaceReport) -> None:
        self._backend = backend
        self._report = report
        self._branches = {MAIN: BranchRow(MAIN, None, None, 0, 0, "", ACTIVE)}
        """The branches according to the records."""

    @property
    def parts(self) -> int:
        return 1 + self._report.revisions // _AT_ONCE

    def walk(self) -> None:
        time = ""
        for row in self._commits(is_first=True):
            self._report.commits += 1
            try:
                original = self._checked(row, time)
            except Corrupt as error:
                self._report.add("commit", f"commit {row.seq}", error.message)
                continue
            time = row.created_at
            self._follow(row, original)

    def compare(self, part: int) -> None:
        """Check all entities of one part: their chains, heads, snapshots and states."""
        told: dict[str, dict[str, list[Told]]] = {}
        for row in self._commits(is_first=False):
            for entity, one in _told(row):
                if hash(entity) % self.parts == part:
                    told.setdefault(row.branch, {}).setdefault(entity, []).append(one)
        for branch, known in told.items():
            self._report.entities += len(known)
            for ids in in_chunks(sorted(known), IDS_AT_ONCE):
                self._compare_some(branch, ids, known)
        for branch in sorted(self._branches):
            there = {entity for entity in self._found(branch) if hash(entity) % self.parts == part}
            for entity in sorted(there - told.get(branch, {}).keys()):
                self._report.add("revision", _place(branch, entity), "no commit wrote this entity")

    def check_branches(self) -> None:
        rows = {row.name: row for row in self._backend.branches() if row.created_seq <= self._report.seq}
        self._report.branches = len(rows | {MAIN: None})
        is_moving = self._backend.newest().seq > self._report.seq
        for name, want in self._branches.items():
            found = rows.pop(name, None)
            if found is None and name == MAIN and not want.head_seq:
                continue
            if found is None:
                self._report.add("branch", branch_name(name), "it is missing")
            elif not is_moving and found._replace(created_at="") != want._replace(created_at=""):
                self._report.add("branch", branch_name(name), f"it is {found}, but its commits say {want}")
        for name in rows:
            self._report.add("branch", branch_name(name), "no commit created it")

    def _commits(self, *, is_first: bool) -> Iterator[CommitRow]:
        """The readable commits, in order, some megabytes at a time."""
        after, limit, upto = 0, _PAGE_FIRST, self._report.seq
        while after < upto:
            try:
                rows = self._backend.commits(after, min(upto, after + limit), limit)
                expected = range(after + 1, min(upto, after + limit) + 1)
            except Corrupt as error:
                if limit > 1:
                    limit = 1
                    continue
                rows, expected = [], range(after + 1, after + 2)
                if is_first:
                    self._report.add("commit", f"commit {after + 1}", error.message)
            there = {row.seq for row in rows}
            for seq in expected:
                if seq not in there and is_first and limit > 1:
                    self._report.add("commit", f"commit {seq}", "it is missing")
            yield from rows
            after = expected[-1]
            size = sum(len(str(row.original)) for row in rows)
            limit = max(2, min(_PAGE_MAX, _PAGE_BYTES * len(rows) // max(1, size))) if rows else _PAGE_FIRST

    def _checked(self, row: CommitRow, time: str) -> JsonObject:
        """The record; `Corrupt` for one that a read cannot use."""
        texts: Sequence[object] = (row.original, row.resolution, row.created_at)
        if not all(isinstance(text, str) for text in texts):  # SQLite stores any type
            raise Corrupt("its record is not text")
        original = loads_own(row.original.encode(), f"commit {row.seq}")
        Committed.of(row)
        moment_of(row.created_at)
        if row.created_at < time:
            raise Corrupt("it is older than the commit before it")
        if original.get("localSeq") != row.local_seq:
            raise Corrupt("its record has a different localSeq")
        named = self._backend.commit_of(row.session_id, row.local_seq)
        if named is None or named.seq != row.seq:
            raise Corrupt("it cannot be found by its session_id and local_seq")
        self._report.revisions += sum(1 for _ in _told(row))
        return original

    def _follow(self, row: CommitRow, original: JsonObject) -> None:
        """Follow the effect of a commit on its branch."""
        command, name = original.get("cmd"), row.branch
        known = self._branches.get(name)
        if command == CREATE:
            parent, fork = original.get("parent"), original.get("forkSeq")
            if known is not None or not isinstance(parent, str) or not isinstance(fork, int):
                self._report.add(
                    "commit", f"commit {row.seq}", "it creates a branch that already exists, or one without a parent"
                )
                return
            self._branches[name] = BranchRow(name, parent, fork, row.seq, row.seq, "", ACTIVE)
        elif known is None:
            self._report.add("commit", f"commit {row.seq}", f"its branch {name!r} was never created")
        elif command in (END, BACK):
            self._branches[name] = known._replace(status=DELETED if command == END else ACTIVE)
        else:
            self._branches[name] = known._replace(head_seq=row.seq)

    def _found(self, branch: str) -> set[str]:
        try:
            return self._backend.touched(branch, 0, self._report.seq)
        except Corrupt as error:
            self._report.add("head", branch_name(branch), error.message)
            return set()

    def _compare_some(self, branch: str, ids: Sequence[str], told: Mapping[str, list[Told]]) -> None:
        """Compare one by one if some of them cannot be read."""
        try:
            self._compare_chains(branch, ids, told)
        except (Corrupt, NotFound) as error:
            if len(ids) > 1:
                for entity in ids:
                    self._compare_some(branch, [entity], told)
            else:
                self._report.add("revision", _place(branch, ids[0]), error.message)

    def _compare_chains(self, branch: str, ids: Sequence[str], told: Mapping[str, list[Told]]) -> None:
        seq = self._report.seq
        chains = {
            entity: [row for row in rows if row.seq <= seq]
            for entity, rows in self._backend.chains(branch, ids).items()
        }
        heads = self._backend.heads(branch, ids, seq)
        sound = []
        for entity in ids:
            rows = chains.get(entity, [])
            if [_told_of(row) for row in rows] != told[entity]:
                self._report.add("revision", _place(branch, entity), "its revisions do not match the commits")
            elif heads.get(entity) != Pointer(rows[-1].seq, rows[-1].op_index):
                self._report.add("head", _place(branch, entity), "its head is not its newest revision")
            else:
                sound.append(entity)
        self._compare_states(branch, sound, chains)

    def _compare_states(self, branch: str, ids: Sequence[str], chains: Mapping[str, list[RevisionRow]]) -> None:
        """Compare the result of reads, and all snapshots, with the result of the revisions."""
        line = line_of(self._backend, branch, self._report.seq)
        bases = load(self._backend, line[1:], ids) if len(line) > 1 else {}
        bodies = {
            entity: dict(_states(bases[entity].body if entity in bases else None, chains[entity], entity))
            for entity in ids
        }
        wrong = set()
        for entity, rows in self._backend.all_snapshots(branch, ids).items():
            for row in rows:
                self._report.snapshots += 1
                if row.seq <= self._report.seq and bodies[entity].get(row.seq, b"") != str(row.value).encode():
                    wrong.add(entity)
                    self._report.wrong_snapshots.setdefault(branch, set()).add(entity)
                    place = f"{_place(branch, entity)}, commit {row.seq}"
                    self._report.add("snapshot", place, "it does not match the revisions")
        rest = [entity for entity in ids if entity not in wrong]
        states = load(self._backend, line, rest)
        for entity in rest:
            state = states.get(entity)
            if state is None or state.body != bodies[entity][chains[entity][-1].seq]:
                message = "a read returns something other than its revisions give"
                self._report.add("snapshot", _place(branch, entity), message)


def _states(base: bytes | None, rows: Sequence[RevisionRow], place: str) -> Iterator[tuple[int, bytes | None]]:
    """The document after each revision; the last of a commit counts."""
    body = base
    for row in rows:
        body, _ = fold(body, [row], place)
        yield row.seq, body


def _told(row: CommitRow) -> Iterator[tuple[str, Told]]:
    """The revisions of a commit from its record; empty for a damaged one, which is reported once."""
    try:
        operations = loads_own(str(row.original).encode(), f"commit {row.seq}").get("operations", [])
    except Corrupt:
        return
    for op_index, shape in enumerate(operations if isinstance(operations, list) else []):
        if isinstance(shape, dict):
            op = str(shape.get("op"))
            data = None if op == DELETE else dumps(shape.get(_DATA.get(op, ""))).decode()
            yield str(shape.get("id")), _told_of(RevisionRow("", row.seq, op_index, op, data))


def _told_of(row: RevisionRow) -> Told:
    digest = hashlib.blake2b(str(row.data).encode(), digest_size=16).digest()
    return row.seq, row.op_index, row.op, digest


def _place(branch: str, entity: str) -> str:
    return f"{entity!r} on {branch_name(branch)!r}"


def _check_blobs(backend: Backend, report: SpaceReport) -> None:
    """Check the bytes of every payload, and that all metadata on active branches has a payload."""
    there = set()
    for row in backend.blobs():
        there.add(row.hash)
        report.blobs += 1
        try:
            for _ in blobs.stream(backend, row.hash):
                pass
        except NotFound:
            if backend.blob(row.hash) is not None:
                report.add("blob", row.hash, "its bytes are gone")
        except Corrupt as error:
            report.add("blob", row.hash, error.message)
    for branch in (MAIN, *(row.name for row in backend.branches() if row.status == ACTIVE and row.name != MAIN)):
        named = sorted(one for one in backend.touched(branch, 0, report.seq) if one.startswith(BLOB_META))
        for ids in in_chunks(named, IDS_AT_ONCE):
            states = load(backend, line_of(backend, branch, report.seq), ids)
            for entity, state in states.items():
                digest = entity.removeprefix(BLOB_META)
                if state.body is not None and digest not in there and backend.blob(digest) is None:
                    report.add("blob", digest, f"branch {branch_name(branch)!r} names it, but it is missing")
