"""Entities on a branch as of a commit, and the commit of a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import cast

from worm.codec.strict_json import dumps
from worm.errors import Invalid, NotFound
from worm.spaces.backend import Backend, Looking, Moment, Reads
from worm.spaces.cache import StateCache
from worm.spaces.lineage import line_of, visible_heads
from worm.spaces.names import check_seq
from worm.spaces.replay import Known, State, content, load, nothing_known
from worm.spaces.results import Entity, Presence, parsed_document
from worm.spaces.rows import MAIN, time_text

_DELETED, _PRESENT = Presence.DELETED, Presence.PRESENT

Remember = Callable[[str, State], None]
"""Keeps the state of an entity for the next who asks."""


def forget(id: str, state: State) -> None:
    pass


def seq_of(reads: Reads, at: int | datetime | None, newest: int) -> int:
    """The commit that a caller means: a seq, the last one at or before a time, or the newest."""
    if at is None:
        return newest
    if isinstance(at, datetime):
        return _seq_at(reads, at, newest)
    if check_seq(at, "at") > newest:
        raise NotFound(f"commit {at} is not there yet; the newest is {newest}")
    return at


def entities(
    reads: Reads,
    branch: str,
    ids: Sequence[str],
    at: int,
    newest: int,
    known: Known = nothing_known,
    remember: Remember = forget,
) -> dict[str, Entity]:
    """All of them as of one commit, in the order of `ids`."""
    states = load(reads, line_of(reads, branch, at), dict.fromkeys(ids), known)
    for entity, state in states.items():
        remember(entity, state)
    missing = [entity for entity in dict.fromkeys(ids) if entity not in states]
    later = visible_heads(reads, line_of(reads, branch, newest), missing) if missing and at < newest else {}
    return {entity: entity_of(entity, branch, at, states.get(entity), is_later=entity in later) for entity in ids}


def looking(backend: Backend) -> Callable[[], AbstractContextManager[Moment]] | None:
    """How the backend looks at a moment, if it can."""
    return cast(Looking, backend).look if issubclass(type(backend), Looking) else None


def main_entity(rows: Moment, id: str, at: int | datetime | None, cache: StateCache) -> Entity:
    """One on the main branch, which inherits nothing: the short way to what `entities` says."""
    newest, head = rows.current(MAIN, id)
    seq = newest if at is None else seq_of(rows, at, newest)
    if head is None:
        return Entity(id, MAIN, seq, Presence.NEVER, 0, None)
    if head.seq > seq:
        head = rows.past_head(MAIN, id, seq)
        if head is None:
            return Entity(id, MAIN, seq, Presence.EMPTY, 0, None)
    state = cache.get(MAIN, id, head)
    if state is not None:
        return entity_of(id, MAIN, seq, state)
    key = f"{id!r} on {MAIN!r}"
    body, document, patches = content(rows, MAIN, id, head, seq, key)
    if seq == newest and cache.keeps:
        kept = dumps(document) if document is not None else body.encode() if isinstance(body, str) else body
        cache.put(id, State(MAIN, head, kept, patches))
    if document is None and body is not None:
        document = parsed_document(body, key)
    return Entity(id, MAIN, seq, _DELETED if document is None else _PRESENT, head.seq, document)


def entity_of(id: str, branch: str, at: int, state: State | None, *, is_later: bool = False) -> Entity:
    if state is None:
        return Entity(id, branch, at, Presence.EMPTY if is_later else Presence.NEVER, 0, None)
    if state.body is None:
        return Entity(id, branch, at, _DELETED, state.pointer.seq, None)
    value = parsed_document(state.body, f"{id!r} on {state.home!r}")
    return Entity(id, branch, at, _PRESENT, state.pointer.seq, value)


def _seq_at(reads: Reads, moment: datetime, newest: int) -> int:
    """Times never fall along the order of commits, so halving finds it."""
    if moment.tzinfo is None:
        raise Invalid("a datetime without time zone says no time", hint="datetime(…, tzinfo=UTC)")
    text = time_text(moment)
    low, high = 0, newest  # the answer is at or after `low`, and before or at `high`
    while low < high:
        middle = (low + high + 1) // 2
        row = reads.commit_at(middle)
        if row is None or row.seq <= low or row.created_at <= text:  # no commit between, or an earlier one
            low = middle
        else:
            high = row.seq - 1
    return low
