"""A space that keeps every state of every branch in memory, whole, after every commit. Nothing is shared with the
product: no lines, no snapshots, no replay."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from worm.formats.strict_json import JsonObject, JsonValue, dumps

Documents = dict[str, JsonObject | None]
"""By id; None for what was deleted."""


@dataclass
class Oracle:
    """`states[branch][seq]` are all documents that are visible there."""

    states: dict[str, list[Documents]] = field(default_factory=lambda: {"": [{}]})
    deleted: set[str] = field(default_factory=set)
    forks: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def seq(self) -> int:
        return len(self.states[""]) - 1

    @property
    def active(self) -> list[str]:
        return [name for name in self.states if name not in self.deleted]

    def commit(self, branch: str, ops: list[JsonObject]) -> None:
        for name, history in self.states.items():
            history.append(after(history[-1], ops) if name == branch else history[-1])

    def fork(self, name: str, parent: str, at: int) -> None:
        """Before its making a branch is what it was forked from."""
        past = self.states[parent]
        self.states[name] = [past[min(seq, at)] for seq in range(len(past))]
        self.forks[name] = (parent, at)
        self.commit(name, [])

    def end(self, name: str) -> None:
        self.deleted.add(name)
        self.commit(name, [])

    def back(self, name: str) -> None:
        self.deleted.remove(name)
        self.commit(name, [])

    def children(self, name: str) -> list[str]:
        return [one for one in self.active if self.forks.get(one, ("", 0))[0] == name and one]

    def common(self, one: str, other: str) -> Documents:
        """What two branches had in common when they parted."""
        lines = [self._line(name) for name in (one, other)]
        shared = next(name for name in lines[0] if name in lines[1])
        return self.states[shared][min(line[shared] for line in lines)]

    def _line(self, name: str) -> dict[str, int]:
        line, upto = {name: self.seq}, self.seq
        while name:
            name, fork = self.forks[name]
            upto = min(upto, fork)
            line[name] = upto
        return line

    def told(self, branch: str, id: str, seq: int) -> tuple[str, bytes]:
        """What a read must say: the presence, and the canonical bytes of the document, or of null."""
        found = self.states[branch][seq]
        if id in found:
            return "deleted" if found[id] is None else "present", dumps(found[id])
        return ("empty" if id in self.states[branch][-1] else "never"), b"null"

    def changed_after(self, branch: str, id: str, seq: int, changes: dict[tuple[str, str], list[int]]) -> bool:
        """Whether a commit after `seq` touched what is visible on the branch."""
        upto = self.seq
        while True:
            touched = [one for one in changes.get((branch, id), []) if one <= upto]
            if touched or branch == "":
                return bool(touched) and touched[-1] > seq
            branch, fork = self.forks[branch]
            upto = min(upto, fork)


def after(documents: Documents, ops: list[JsonObject]) -> Documents:
    """A copy with the operations done. Patches here only add and remove members of the document."""
    result = copy.deepcopy(documents)
    for op in ops:
        name = str(op["id"])
        if op["op"] == "set":
            result[name] = copy.deepcopy(_object(op["value"]))
        elif op["op"] == "delete":
            result[name] = None
        else:
            document = result.get(name) or {}
            patches = op["patches"]
            assert isinstance(patches, list)
            for patch in map(_object, patches):
                member = str(patch["path"])[1:]
                if patch["op"] == "remove":
                    del document[member]
                else:
                    document[member] = copy.deepcopy(patch["value"])
            result[name] = document
    return result


def _object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value
