"""Many documents at once: concurrent inside, one result for each, in order. Inline maintenance folds the bulk once.

One item's error fails no other. Of several documents with one id only the first is saved, the others fail: which of
them should stay is not for this code to guess. Documents that share a unique value are saved one after the other, in
order: the first that can be saved gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from worm.codec.strict_json import JsonValue
from worm.collections.entries import Document
from worm.collections.ids import SINGLETON_ID, typed_problem
from worm.errors import Invalid, WormError
from worm.sdk.core import Touched
from worm.sdk.writing import Writing
from worm.store.base import Object, Read
from worm.store.parallel import in_parallel

D = TypeVar("D")
T = TypeVar("T")
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Result(Generic[D]):
    """What became of one item: `document` is the one saved, found or deleted (None: there was none), `error` why not.
    Both: it is done, but history and table are behind."""

    id: str
    document: D | None = None
    error: WormError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class Bulk(Writing):
    """`save_many`, `find_many`, `delete_many`."""

    def save_many(
        self, documents: Sequence[Mapping[str, JsonValue]], *, actor: str | None = None
    ) -> list[Result[Document]]:
        """`save` for each. A document whose id an earlier one has is not saved: `Invalid`."""
        ids = [self._named(document) for document in documents]
        holders = self._claiming.holders(documents) if self._claiming.is_needed else None
        first = {one: position for position, one in reversed(list(enumerate(ids)))}

        def save(position: int) -> tuple[Document, Touched]:
            one = ids[position]
            if one and first[one] != position:
                raise Invalid(
                    f"{self.name} '{one}' is twice in this bulk",
                    key=self._collection.documents.key(one) if self._is_id(one) else None,
                    hint="only the first one was tried; give the other its own id, or save it afterwards",
                )
            return self._save(documents[position], actor, holders)

        shared = self._claiming.shared_values(documents) if self._claiming.is_needed else None
        return self._bulk(ids, range(len(documents)), save, shared)

    def delete_many(self, ids: Sequence[str], *, actor: str | None = None) -> list[Result[Document]]:
        """`delete` for each; `document` is what was deleted."""
        return self._bulk(ids, ids, lambda one: self._delete(one, actor))

    def find_many(self, ids: Sequence[str]) -> list[Result[Document]]:
        """`find_by_id` for each."""
        results: list[Result[Document]] = []
        for start in range(0, len(ids), CHUNK):
            results += self._find_chunk(ids[start : start + CHUNK])
        return results

    def _find_chunk(self, ids: Sequence[str]) -> list[Result[Document]]:
        refused: dict[str, WormError] = {}
        for one in ids:
            try:
                self._checked(one)
            except WormError as error:
                refused[one] = error
        valid = [one for one in ids if one not in refused]
        reads = [Read(self._collection.documents.key(one)) for one in valid]
        answers = self._session.store.get_many(reads, max_bytes=self._collection.max_bytes)
        found = dict(zip(valid, answers, strict=True))
        return [Result(one, error=refused[one]) if one in refused else self._found(one, found[one]) for one in ids]

    def _found(self, entity_id: str, found: Object | Exception | None) -> Result[Document]:
        if isinstance(found, Invalid):
            return Result(entity_id, error=self._broken(entity_id, found))
        if isinstance(found, WormError):
            return Result(entity_id, error=found)
        if isinstance(found, Exception):
            raise found
        if self.logged is not None:
            found = self.logged.latest(entity_id, found)
        if found is None:
            self._memory.forget(entity_id)
            return Result(entity_id)
        try:
            document = self._parsed(entity_id, found)
        except WormError as error:
            return Result(entity_id, error=error)
        self._memory.read(entity_id, found, document)
        return Result(entity_id, {"id": entity_id, **document})

    def _named(self, document: Mapping[str, JsonValue]) -> str:
        """The id in the result; empty where there is none."""
        given = SINGLETON_ID if self._collection.definition.is_singleton else document.get("id")
        return "" if given is None else str(given)

    def _is_id(self, text: str) -> bool:
        return typed_problem(self._collection.definition.id_type, text) is None

    def _bulk(
        self,
        ids: Sequence[str],
        items: Sequence[T],
        work: Callable[[T], tuple[Document, Touched] | None],
        shared: Sequence[Iterable[Hashable]] | None = None,
    ) -> list[Result[Document]]:
        results: list[Result[Document]] = [Result(one) for one in ids]
        touched: dict[str, Touched] = {}

        def one_group(positions: Sequence[int]) -> None:
            for position in positions:
                try:
                    done = work(items[position])
                except WormError as error:
                    results[position] = Result(ids[position], error=error)
                    continue
                if done is not None:
                    results[position] = Result(ids[position], done[0])
                    touched.setdefault(ids[position], done[1])

        names = [{one, *more} for one, more in zip(ids, shared or [()] * len(ids), strict=True)]
        in_parallel(one_group, groups_of(names))
        try:
            self._maintain(list(touched.values()))
        except WormError as error:
            return [
                Result(one.id, one.document, error) if one.document is not None and one.ok else one for one in results
            ]
        return results


def groups_of(names: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """The positions that share a name, directly or through others, together and in order."""
    leader = list(range(len(names)))

    def leading(position: int) -> int:
        while leader[position] != position:
            leader[position] = leader[leader[position]]
            position = leader[position]
        return position

    first: dict[Hashable, int] = {}
    for position, own in enumerate(names):
        for name in own:
            leader[leading(position)] = leading(first.setdefault(name, position))
    groups: dict[int, list[int]] = {}
    for position in range(len(names)):
        groups.setdefault(leading(position), []).append(position)
    return list(groups.values())
