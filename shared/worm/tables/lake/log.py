"""Requests for the log of a Delta table: find its newest version, add one, write checkpoints.

`_worm.json`, beside the log, is the *tip*: what a publisher needs to know of the newest version, so that it need not
replay the log. It is only a hint. A listing shows whether it names the newest version; if it does not, or if it is gone
or damaged, the log is read. The put-if-absent of the next version decides in any case.

It knows nothing of tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from worm.errors import Corrupt
from worm.formats import JsonObject, dumps
from worm.store import Listed, Object, Read, Store, Won
from worm.tables.lake.actions import (
    CHECKPOINT_EVERY,
    RENEW,
    LogState,
    Tip,
    decode_checkpoint,
    decode_commit,
    encode_checkpoint,
    encode_commit,
)
from worm.tables.sealed import seal, unseal
from worm.values import dataclass

LOG_DIR = "_delta_log/"
TIP_FILE = "_worm.json"
LAST_CHECKPOINT = "_last_checkpoint"
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10}))?\.parquet")


@dataclass(frozen=True, slots=True)
class Entries:
    """A listing of the log: commits and complete checkpoints by version, with when they were written."""

    commits: dict[int, datetime]
    checkpoints: dict[int, datetime]
    files: dict[int, list[str]]
    """The keys of each checkpoint."""
    etags: dict[int, str]
    """Of the commits."""

    @property
    def newest(self) -> int:
        return max((*self.commits, *self.checkpoints), default=-1)


class DeltaLog:
    """The log under `directory`, which ends in a slash."""

    def __init__(self, store: Store, directory: str) -> None:
        self.directory = directory
        self._store = store

    def key(self, file: str) -> str:
        return f"{self.directory}{LOG_DIR}{file}"

    def commit_key(self, version: int) -> str:
        return self.key(f"{version:020d}.json")

    # Reading

    def tip(self) -> Tip | None:
        """What `_worm.json` says; None if it is gone or damaged."""
        key = self.directory + TIP_FILE
        found = self._store.get(key)
        try:
            return None if found is None else Tip.of_shape(unseal(found.body, key), key)
        except Corrupt:  # the log has everything
            return None

    def is_newest(self, tip: Tip, listed: Iterable[Listed]) -> bool:
        """`listed`: everything from `after(tip)` on."""
        entries = self.entries(listed)
        return entries.newest == tip.version and entries.etags.get(tip.version, "") == tip.etag

    def after(self, tip: Tip) -> str | None:
        """Where a listing must start to show whether the tip is the newest version."""
        return self.commit_key(tip.version - 1) if tip.version > 0 else None

    def entries(self, listed: Iterable[Listed] | None = None) -> Entries:
        """Listed unless given."""
        commits, checkpoints, parts = dict[int, datetime](), dict[int, datetime](), dict[int, list[str]]()
        wanted, etags = dict[int, int](), dict[int, str]()
        for one in self._store.list(self.key("")) if listed is None else listed:
            name = one.key.removeprefix(self.key(""))
            if match := _COMMIT.fullmatch(name):
                commits[int(match[1])] = one.last_modified
                etags[int(match[1])] = one.etag
            elif match := _CHECKPOINT.fullmatch(name):
                version = int(match[1])
                checkpoints[version] = one.last_modified
                parts.setdefault(version, []).append(one.key)
                wanted[version] = int(match[2] or 1)
        complete = {version for version, keys in parts.items() if len(keys) >= wanted[version]}
        times = {version: at for version, at in checkpoints.items() if version in complete}
        return Entries(commits, times, {version: sorted(parts[version]) for version in complete}, etags)

    def read(self, entries: Entries) -> LogState:
        """Replay the newest version from the newest checkpoint. `Corrupt` if a commit is missing."""
        newest = entries.newest
        start = max(entries.checkpoints, default=-1)
        state = LogState(start)
        if start >= 0:
            key = entries.files[start][0]
            bodies = [one.body for one in self._objects(entries.files[start])]
            state = state.after(start, decode_checkpoint(bodies, key))
        # The commit of a checkpoint is replayed over it: only that has the commitInfo.
        first = start if start == newest and newest in entries.commits else start + 1
        versions = range(max(first, 0), newest + 1)
        keys = [self.commit_key(version) for version in versions]
        for version, found in zip(versions, self._objects(keys), strict=True):
            state = state.after(version, decode_commit(found.body, found.key))
        if newest >= 0:
            if state.metadata is None:
                raise Corrupt("the log of the Delta table has no metaData", key=self.commit_key(newest), hint=RENEW)
            state.check_ours(self.commit_key(newest))
        return state

    def _objects(self, keys: Sequence[str]) -> list[Object]:
        found = self._store.get_many([Read(key) for key in keys])
        for key, one in zip(keys, found, strict=True):
            if isinstance(one, Exception):
                raise one
            if one is None:
                raise Corrupt("an entry of the Delta log is gone", key=key, hint=RENEW)
        return [one for one in found if isinstance(one, Object)]

    # Writing

    def commit(self, version: int, actions: Iterable[JsonObject]) -> str | None:
        """The etag of the commit; None: another writer added this version."""
        done = self._store.put_if_absent(self.commit_key(version), encode_commit(actions))
        return done.etag if isinstance(done, Won) else None

    def remember(self, tip: Tip) -> None:
        self._store.put(self.directory + TIP_FILE, seal(tip.shape()))

    def is_checkpoint_due(self, tip: Tip) -> bool:
        return tip.version - tip.checkpoint >= CHECKPOINT_EVERY + (tip.checkpoint < 0)

    def checkpoint(self, now_ms: int) -> int:
        """Write a checkpoint of the newest version; returns its number."""
        state = self.read(self.entries()).kept(now_ms)
        body, count = encode_checkpoint(state)
        self._store.put(self.key(f"{state.version:020d}.checkpoint.parquet"), body)
        pointer: JsonObject = {"version": state.version, "size": count, "sizeInBytes": len(body)}
        self._store.put(self.key(LAST_CHECKPOINT), dumps({**pointer, "numOfAddFiles": len(state.adds)}))
        return state.version
