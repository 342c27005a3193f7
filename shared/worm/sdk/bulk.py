"""Many documents at once: `insert_many`, `save_many`, `upsert_many`, in units.

A *unit* is up to `UNIT_DOCUMENTS` documents and about `UNIT_BYTES`. All its documents are stored together, each under
its own condition, then all its oplog entries (`Store.put_many`): in a directory that takes two fsyncs for a unit,
elsewhere many concurrent requests. Every document has its own result, and an error of one does not affect the others.
If the process is killed, some documents of a unit are stored, at worst without an entry. Running the same bulk again
records them, and writes only the missing ones.

Inline maintenance folds a bulk once, and a large one every `FOLDED_AT_ONCE` documents.

If several documents have the same id, only the first is saved and the others fail: this code does not guess which one
you want. Documents that share a unique value, and documents of a model in a space, are not part of a unit. They are
saved one by one; documents that share a value in order, so the first one that can be saved gets the value.

If the store fails a whole unit, the rest is not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar, Unpack

from worm.collections import Document, Head, Holders
from worm.errors import CommitStateUnknown, Conflict, Invalid, Unavailable, WormError
from worm.formats import SINGLETON_ID, JsonValue
from worm.sdk.access import D, Prepared, Result, Touched, Unfolded, heads_of
from worm.sdk.document import About, DocumentDict, id_shown
from worm.sdk.values import check_function
from worm.sdk.writing import DocumentDraft, Writing
from worm.store import Gone, Lost, Object, Portions, Put, Read, in_chunks, in_parallel, is_directory, is_remote
from worm.tables import Progress, silent

UNIT_DOCUMENTS = 500
UNIT_BYTES = 8 << 20
CHECKED_AT_ONCE = 64
"""Some of the documents that were read before have to be read again: this many at once."""
FOLDED_AT_ONCE = 5_000
T = TypeVar("T")
R = TypeVar("R")
Done = tuple[Document, Touched | None]
"""The document, and the write (None: nothing had to be written)."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What happens to each document: as part of a unit, based on the stored state if the verb `reads` it; or alone."""

    draft: Callable[[DocumentDict, Object | None], DocumentDraft]
    alone: Callable[[DocumentDict, Holders | None], Done]
    reads: bool = False


@dataclass
class _Course(Generic[D]):
    """The results of one bulk so far, by position; `behind`, `heads` and `unfolded` by id."""

    ids: Sequence[str]
    progress: Progress = silent
    done: dict[int, Done] = field(default_factory=dict)
    errors: dict[int, WormError] = field(default_factory=dict)
    unchanged: dict[int, str | None] = field(default_factory=dict)
    """The etags of documents that were already stored."""
    behind: dict[str, WormError] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    unfolded: dict[str, Unfolded] = field(default_factory=dict)
    followed: int = 0
    failure: WormError | None = None
    """Why the rest was not tried."""
    raised: Exception | None = None
    """The exception that the caller's `progress` raised: nothing more is started."""

    def tell(self, positions: Sequence[int]) -> None:
        """History and table are written for those of these that are done."""
        self.followed += sum(one in self.done for one in positions)
        try:
            self.progress(self.followed + len(self.errors), len(self.ids))
        except Exception as error:  # noqa: BLE001 - raised again once all that is stored has its history
            self.raised = self.raised or error

    def while_wanted(self, turns: Iterable[T]) -> Iterator[T]:
        return takewhile(lambda _: self.raised is None, turns)

    def finish(self, position: int, done: Done) -> None:
        self.done[position] = done
        if done[1] is None:
            origin = done[0].provenance if isinstance(done[0], DocumentDict) else None
            self.unchanged[position] = None if origin is None else origin.at.etag


@dataclass(frozen=True, slots=True)
class _Ready:
    """A document of a unit, before its unique values are reserved."""

    position: int
    draft: DocumentDraft
    put: Put


class Bulk(Writing[D]):
    """`insert_many`, `save_many`, `upsert_many`."""

    def save_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`save` for each. If two documents have the same id, the second fails with `Invalid`. `progress` is called
        after each unit with the number of finished documents and the total.

        Examples:
            >>> found = list(customers.find_all())
            >>> for customer in found:
            ...     customer.visits += 1
            >>> [result.document.visits for result in customers.save_many(found)]
            [1, 1]
        """
        verb = Verb(
            lambda one, _: self._draft_of_save(one),
            lambda one, holders: self._save(one, about, holders),
        )
        return self._many(documents, verb, about, progress=progress)

    def insert_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`insert` for each.

        Examples:
            >>> results = customers.insert_many([{"id": "initech", "name": "Initech"}, {"id": "acme", "name": "Acme"}])
            >>> [(result.created, type(result.error).__name__) for result in results]
            [(True, 'NoneType'), (False, 'Conflict')]
        """
        verb = Verb(
            lambda one, _: self._draft_of_new(one, self._new_id(one)),
            lambda one, holders: self._inserted(one, self._new_id(one), about, holders),
        )
        return self._many(documents, verb, about, gives_ids=True, progress=progress)

    def upsert_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`upsert` for each. `created` shows which documents are new, `unchanged` which were already stored.

        Examples:
            >>> results = customers.upsert_many([{"id": "acme", "name": "Acme"}, {"id": "initech", "name": "Initech"}])
            >>> [result.created for result in results]
            [False, True]
        """

        def draft(document: DocumentDict, found: Object | None) -> DocumentDraft:
            self._begin_write(creates=True)
            entity_id = self._new_id(document)
            if self.mode == "append":
                return self._draft_of_new(document, entity_id)
            self._check_whole(document, entity_id)
            return self._draft_of_swap(document, entity_id, found, None, creates=True)

        verb = Verb(draft, lambda one, holders: self._upserted(one, about, holders), reads=self.mode != "append")
        return self._many(documents, verb, about, gives_ids=True, progress=progress)

    def _many(
        self,
        documents: Sequence[D | Mapping[str, object]],
        verb: Verb,
        about: About,
        *,
        gives_ids: bool = False,
        progress: Progress = silent,
    ) -> list[Result[D]]:
        check_function(progress, "progress")
        self._note(about)  # an error here applies to all
        wrong: dict[int, WormError] = {}
        given = [
            self._item(one, wrong, position, gives_ids=gives_ids)
            for position, one in enumerate(_listed(documents, "documents"))
        ]
        course: _Course[D] = _Course([self._named(document) for document in given], progress, errors=wrong)
        self._refuse_repeated(course)
        holders = self._claiming.holders(given) if self._claiming.is_needed else None
        self._leave_note()

        def finish(position: int, done: Done) -> None:
            course.finish(position, done)
            item = documents[position]
            if done[1] is not None and (isinstance(item, DocumentDict) or not isinstance(item, Mapping)):
                self._shape.bring(item, self._saved(done[0], done[1]))

        def alone(positions: Sequence[int]) -> None:
            for position in positions:
                try:
                    done = verb.alone(given[position], holders)
                except WormError as error:
                    course.errors[position] = error
                else:
                    course.errors.pop(position, None)
                    finish(position, done)

        singles, groups = self._divided(given, course)
        for some in course.while_wanted(_chunks(groups)):
            in_parallel(alone, some)
            positions = [one for group in some for one in group]
            self._follow(course, positions)
            course.tell(positions)
        before: Future[None] | None = None
        for turn in course.while_wanted(self._turns(singles, given, verb.reads, course)):
            for unit in self._units(turn, given, verb, about, course):
                lost = self._put_unit(self._reserve_all(unit, course, holders), course, finish)
                in_parallel(alone, [[one] for one in lost] if verb.reads else [])
            before = self._follow_beside(course, list(turn), before)
        return self._ended(course, before)

    def _ended(self, course: _Course[D], before: Future[None] | None) -> list[Result[D]]:
        if before is not None:
            before.result()
        results = self._results(course)
        if course.raised is not None:
            raise course.raised
        return results

    def _leave_note(self) -> None:
        """A killed bulk leaves many changes, and a directory has no workers to fold them."""
        if self._session.settings.maintenance == "inline" and is_directory(self._session.store):
            self._session.folder.note.leave(self.name)

    # Not part of a unit

    def _refuse_repeated(self, course: _Course[D]) -> None:
        first: dict[str, int] = {}
        for position, one in enumerate(course.ids):
            if one and first.setdefault(one, position) != position and position not in course.errors:
                course.errors[position] = Invalid(
                    f"{self.name} '{one}' occurs twice in this bulk",
                    key=self._collection.documents.key(one) if self._is_id(one) else None,
                    hint="only the first one was tried; give the other one its own id, or save it later",
                )

    def _divided(self, given: Sequence[DocumentDict], course: _Course[D]) -> tuple[list[int], list[list[int]]]:
        """The positions that form units, and groups of positions that are saved one after the other."""
        left = [at for at in range(len(given)) if at not in course.errors]
        if self.logged is None and not self._claiming.is_needed:
            return left, []
        shared = self._claiming.shared_values(given) if self._claiming.is_needed else [set() for _ in given]
        groups = [[left[one] for one in group] for group in groups_of([shared[at] for at in left])]
        if self.logged is not None:
            return [], groups
        return [group[0] for group in groups if len(group) == 1], [group for group in groups if len(group) > 1]

    def _item(self, item: object, wrong: dict[int, WormError], position: int, *, gives_ids: bool) -> DocumentDict:
        """The document of one item of a bulk. If it has none, `wrong` gets the reason."""
        try:
            document = self._shape.dump(self._identified(item) if gives_ids else item)
            if gives_ids and not self._collection.definition.is_singleton:
                document["id"] = self._new_id(document) if document.get("id") is None else document["id"]
        except WormError as error:
            wrong[position] = error
            name = item.get("id") if isinstance(item, Mapping) else None
            return DocumentDict() if name is None else DocumentDict({"id": id_shown(name)})
        return document

    def _named(self, document: Mapping[str, JsonValue]) -> str:
        """The id in the result; empty if there is none."""
        given = SINGLETON_ID if self._collection.definition.is_singleton else document.get("id")
        return "" if given is None else id_shown(given)

    def _is_id(self, text: str) -> bool:
        return self._collection.definition.id_problem(text) is None

    # Units

    def _turns(
        self, positions: Sequence[int], given: Sequence[DocumentDict], reads: bool, course: _Course[D]
    ) -> Iterator[dict[int, Object | None]]:
        """This many positions at a time, with their stored state if the verb reads it, in portions of limited size."""
        if not reads:
            yield from (dict.fromkeys(some) for some in _chunks(positions))
            return
        portions = Portions(most=UNIT_DOCUMENTS)
        for some in portions.of(positions):
            turn = self._there(some, given, course)
            portions.took(sum(len(found.body) for found in turn.values() if found is not None))
            yield turn

    def _there(
        self, positions: Sequence[int], given: Sequence[DocumentDict], course: _Course[D]
    ) -> dict[int, Object | None]:
        """The stored state of these."""
        keys: dict[int, str] = {}
        for position in positions:
            try:
                keys[position] = self._collection.documents.key(self._new_id(given[position]))
            except WormError as error:
                course.errors[position] = error
        there: dict[int, Object | None] = {}
        answers = self._session.store.get_many([Read(key) for key in keys.values()])
        for position, answer in zip(keys, answers, strict=True):
            if isinstance(answer, WormError):
                course.errors[position] = answer
            elif isinstance(answer, Exception):
                raise answer
            else:
                there[position] = answer
        return there

    def _units(
        self,
        turn: Mapping[int, Object | None],
        given: Sequence[DocumentDict],
        verb: Verb,
        about: About,
        course: _Course[D],
    ) -> Iterator[list[_Ready]]:
        """Checked documents, one unit at a time. At this point it is known which are invalid and which need no
        write."""

        def ready(position: int) -> _Ready | None:
            try:
                found = turn[position]
                return self._ready(position, verb.draft(given[position], found), found, about, course)
            except WormError as error:
                course.errors[position] = error
                return None

        unit: list[_Ready] = []
        size = 0
        for some in in_chunks(turn, CHECKED_AT_ONCE):
            asks = is_remote(self._session.store) and any(given[one].provenance is not None for one in some)
            for one in in_parallel(ready, some) if asks else map(ready, some):
                unit += [] if one is None else [one]
                size += 0 if one is None else len(one.put.body)
                if size >= UNIT_BYTES:
                    yield unit
                    unit, size = [], 0
        if unit:
            yield unit

    def _ready(
        self, position: int, draft: DocumentDraft, found: Object | None, about: About, course: _Course[D]
    ) -> _Ready | None:
        """None: nothing to write. A state that was just read need not be read again."""
        parent = draft.parent
        if draft.is_unchanged and parent is not None and parent.document is not None:
            if found is None:
                self._check_there(draft.id, parent)
            course.finish(position, (self._unchanged(draft.id, parent.document, parent), None))
            return None
        if course.failure is not None:
            raise _not_tried(course.failure)
        body = self._encoded(draft.id, draft.document, None if parent is None else parent.document)
        put = self._conditional(draft.id, body, parent, self._actor(about), self._note(about))
        return _Ready(position, draft, put)

    def _reserve_all(
        self, unit: Sequence[_Ready], course: _Course[D], holders: Holders | None
    ) -> list[tuple[int, Prepared]]:
        def one(ready: _Ready) -> Prepared | WormError:
            draft = ready.draft
            try:
                return self._reserved(draft.id, draft.document, draft.parent, ready.put, holders)
            except WormError as error:
                return error

        prepared: list[tuple[int, Prepared]] = []
        for ready, answer in zip(unit, self._each(one, unit), strict=True):
            if isinstance(answer, WormError):
                course.errors[ready.position] = answer
            else:
                prepared.append((ready.position, answer))
        return prepared

    def _put_unit(
        self, prepared: Sequence[tuple[int, Prepared]], course: _Course[D], finish: Callable[[int, Done], None]
    ) -> list[int]:
        """Store the documents of a unit; the positions of those that lost to another write."""
        self._writing(one.id for _, one in prepared)
        outcomes = self._session.store.put_many([one.put for _, one in prepared])
        pairs = zip(prepared, outcomes, strict=True)
        self._follows(one.id for (_, one), outcome in pairs if isinstance(outcome, Lost | Gone))

        def one(at: int) -> Touched | WormError:
            item, outcome = prepared[at][1], outcomes[at]
            try:
                with self._claiming.around(item.reservation):
                    won = self._won(item, outcome)
                return self._completed(item, won)
            except WormError as error:
                return error

        lost: list[int] = []
        for (position, item), touched in zip(prepared, self._each(one, range(len(prepared))), strict=True):
            if isinstance(touched, Conflict):
                lost.append(position)
            if isinstance(touched, WormError):
                course.errors[position] = touched
            else:
                finish(position, (item.document, touched))
        failures = [one for one in outcomes if isinstance(one, Unavailable | CommitStateUnknown)]
        if failures and len(failures) == len(outcomes):
            course.failure = failures[0]
        return lost

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Several at once, if claims need requests."""
        return in_parallel(work, items) if self._claiming.is_needed else [work(one) for one in items]

    # After the write

    def _bulk(
        self,
        ids: Sequence[str],
        items: Sequence[T],
        work: Callable[[T], Done | None],
    ) -> list[Result[D]]:
        """For other verbs: calls `work` for each item. It returns the document and its write, if any; None if there was
        nothing to do."""
        course: _Course[D] = _Course(ids)

        def one_group(positions: Sequence[int]) -> None:
            for position in positions:
                try:
                    outcome = work(items[position])
                except WormError as error:
                    course.errors[position] = error
                    continue
                if outcome is not None:
                    course.done[position] = outcome

        in_parallel(one_group, groups_of([{one} for one in ids]))
        self._follow(course, sorted(course.done))
        return self._results(course)

    def _follow_beside(
        self, course: _Course[D], positions: Sequence[int], before: Future[None] | None
    ) -> Future[None] | None:
        """If each write is a request, the entries of one unit are written while the next unit is prepared. In a
        directory this would gain nothing."""
        if before is not None:
            before.result()

        def follow() -> None:
            self._follow(course, positions)
            course.tell(positions)

        if is_remote(self._session.store):
            return self._session.submit(follow)
        follow()
        return None

    def _follow(self, course: _Course[D], positions: Sequence[int]) -> None:
        """Write history and table of the written documents, and of documents that were already stored if these are
        behind."""
        if self._session.settings.maintenance == "events":
            return
        written = [one for at in positions if at in course.done and (one := course.done[at][1]) is not None]
        stored = [at for at in positions if at in course.unchanged]
        touched = list({one.id: one for one in written}.values())
        try:
            touched += self._left_behind({course.ids[at]: course.unchanged[at] for at in stored})
            unfolded = self._followed(touched, course.behind) if touched else {}
            course.heads |= heads_of(unfolded)
            if self._session.settings.maintenance == "inline":
                course.unfolded |= unfolded
            elif unfolded:
                self._session.folder.add(self._backlog, unfolded)
            self._follows(one.id for one in touched)
        except WormError as error:
            ids = [one.id for one in touched] or [course.ids[at] for at in stored]
            course.behind |= dict.fromkeys(ids, self._behind(ids, error))
        if len(course.unfolded) >= FOLDED_AT_ONCE:
            self._fold_course(course)

    def _left_behind(self, etags: Mapping[str, str | None]) -> list[Touched]:
        """Documents that were already stored, but may lack history and table: the process that stored them may have
        been killed."""
        definition = self._collection.definition
        if self.logged is not None or not (definition.oplog or definition.keeps_manifest):
            return []
        asked = [Touched(one) for one in etags]
        heads = self._hints(asked) if definition.oplog else {}
        return [one for one in asked if (head := heads.get(one.id)) is None or head.etag != etags[one.id]]

    def _fold_course(self, course: _Course[D]) -> None:
        unfolded, course.unfolded = course.unfolded, {}
        try:
            self._fold(list(unfolded.values()))
        except WormError as error:
            late = self._behind(list(unfolded), error)
            course.behind = dict.fromkeys(unfolded, late) | course.behind

    def _results(self, course: _Course[D]) -> list[Result[D]]:
        if course.unfolded:
            self._fold_course(course)
        results: list[Result[D]] = []
        for at, name in enumerate(course.ids):
            if at not in course.done:
                results.append(Result(name, error=course.errors.get(at)))
                continue
            document, wrote = course.done[at]
            whole = document if wrote is None else self._saved(document, wrote, course.heads.get(name))
            error = course.behind.get(name) or (None if wrote is None else wrote.unfreed)
            whole = whole if isinstance(whole, DocumentDict) else DocumentDict(whole)
            is_new = wrote is not None and wrote.is_new
            try:
                loaded = self._shape.load(whole)
            except Invalid as mistake:  # the document does not fit the caller's class
                results.append(Result(name, None, error or mistake))
            else:
                shown = name or str(whole.get("id", ""))
                results.append(Result(shown, loaded, error, is_new, at in course.unchanged))
        return results


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + UNIT_DOCUMENTS] for at in range(0, len(items), UNIT_DOCUMENTS))


def _not_tried(failure: WormError) -> Unavailable:
    return Unavailable(f"not tried, because every document before it failed: {failure.message}", hint=failure.hint)


def _listed(items: object, what: str) -> Sequence[object]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise Invalid(f"must be a list, not {type(items).__name__}", path=what)
    return items


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
