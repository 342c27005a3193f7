"""Documents of a model in a space against its log: which are of an older commit than all documents should have.

A document that is of no commit is somebody's own, and one that is missing was deleted by hand or by its own commit:
both stay as they are until the next commit that writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from worm.collections.collection import Collection
from worm.collections.space_log import commit_of, entity_name
from worm.spaces.applied import applied_key
from worm.spaces.opening import database_id
from worm.spaces.space import Space
from worm.store.base import Object, Read
from worm.tables.difference import Difference

CHUNK = 500


def outdated(collection: Collection) -> Iterator[tuple[str, int, int]]:
    """Id, its commit, and the commit that the log has. Reads every document of the model."""
    space = _space(collection)
    if space is None:
        return
    applied, ids = collection.applied(), list(collection.current_ids())
    for start in range(0, len(ids), CHUNK):
        some = {entity_name(collection.name, one): one for one in ids[start : start + CHUNK]}
        states = space.read_many(list(some))
        reads = [Read(collection.documents.key(one)) for one in some.values()]
        for (entity, one), found in zip(some.items(), collection.store.get_many(reads), strict=True):
            has = commit_of(found, entity) if isinstance(found, Object) else None
            if has is not None and has < states[entity].seq <= applied:
                yield one, has, states[entity].seq


def audit_space(collection: Collection) -> list[Difference]:
    """What `worm verify` says about a model in a space; nothing about another."""
    space, name = _space(collection), collection.definition.space
    if space is None or name is None:
        return []
    found: list[Difference] = []
    applied, newest = collection.applied(), space.seq
    if applied < newest:
        what = f"commits up to {applied} of {newest} are in the documents (`worm repair` goes on)"
        found.append(Difference("documents-behind", collection.name, applied_key(database_id(name)), what))
    for one, has, wanted in outdated(collection):
        what = f"it is of commit {has}, the log has {wanted} (`worm repair` brings it)"
        found.append(Difference("document-outdated", collection.name, collection.documents.key(one), what))
    return found


def _space(collection: Collection) -> Space | None:
    return None if collection.space_log is None else collection.space_log.open()
