"""migrate: change many documents of a model by rules or by a function, each by a save with history.

Documents are read and saved in chunks. Each save is conditional on the version that was read; a document that changed
in the meantime is read and changed again. A document that the change leaves as it is, is not saved, so a migration can
run again at any time. An error of one document does not affect the others.

A raw upload that breaks the schema is changed too: repairing it may be the purpose of the migration.

*checkpoint*: `.worm.migrate/<Model>-<digest>.json`, records how far a migration got, and which documents failed. The
digest is of the rules (or the function's name and code) and the filter. It is written after every chunk and deleted at
the end, so an interrupted migration continues where it stopped, and a finished one starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import cast

from worm.clock import attempts
from worm.collections import Document, DocumentVersion
from worm.errors import Conflict, Corrupt, Invalid, WormError, show
from worm.formats import JsonObject, JsonValue, check_json, dumps, loads_own, shapes
from worm.sdk.document import About, DocumentDict, is_same
from worm.sdk.migration_rules import Change, Rule, apply_rules, name_of, rules_of
from worm.sdk.model import Model
from worm.sdk.values import check_function
from worm.store import in_chunks
from worm.tables import Progress, silent

CHUNK = 200
ATTEMPTS = 10
EXAMPLES_MAX = 5
CHECKPOINT = shapes.record("the checkpoint of a migration", {}, {"after": shapes.TEXT, "failed": shapes.OBJECT})


@dataclass
class MigrationReport:
    """The result of a migration (or of its dry run). `failed` has the reasons by id; `examples` has some of the changed
    documents, before and after."""

    model: str
    looked_at: int = 0
    changed: int = 0
    unchanged: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    examples: list[tuple[Document, Document]] = field(default_factory=list)
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """`filter`: only documents that match. `restart`: forget where an interrupted run stopped."""

    filter: Mapping[str, object] | None = None
    dry_run: bool = False
    restart: bool = False
    progress: Progress = silent


def migrate(
    model: Model[DocumentDict],
    change: Change | Sequence[Rule] | Sequence[Mapping[str, JsonValue]],
    options: MigrationOptions | None = None,
    about: About | None = None,
) -> MigrationReport:
    """Change the documents of a model by rules (or their JSON), or by a function."""
    options = options or MigrationOptions()
    check_function(options.progress, "progress")
    return _Migration(model, _named_change(change), options, about or About()).run()


@dataclass(frozen=True, slots=True)
class _NamedChange:
    name: JsonValue
    apply: Callable[[Document], Document]


def _named_change(change: object) -> _NamedChange:
    if callable(change):
        return _NamedChange(name_of(change), partial(_called, change))
    if isinstance(change, str | bytes) or not isinstance(change, Sequence):
        raise Invalid(f"must be rules or a function, not {show(change)}", path="change")
    rules = [one for given in change for one in ([given] if isinstance(given, Rule) else rules_of([given]))]
    if not rules:
        raise Invalid("the list of rules is empty", hint="pass at least one rule, or a function")
    return _NamedChange([one.shape() for one in rules], lambda document: apply_rules(rules, document))


def _called(function: Callable[[Document], object], document: Document) -> Document:
    returned = function(document)
    result = document if returned is None else returned
    if not isinstance(result, dict):
        raise Invalid(f"the function returned {type(result).__name__}, not a document", path="function")
    check_json(result)
    return result


class _Migration:
    """One run."""

    def __init__(
        self, model: Model[DocumentDict], change: _NamedChange, options: MigrationOptions, about: About
    ) -> None:
        self._model = model
        self._collection = model.table.collection
        self._change = change
        self._options = options
        self._about = about
        self._report = MigrationReport(model.name)

    def run(self) -> MigrationReport:
        if not self._options.dry_run:
            self._model.check_removing()  # a migration replaces documents
        after, again = self._resumed()
        total = None if self._options.progress is silent else len(list(self._ids(None)))
        for ids in in_chunks(again, CHUNK):
            self._do(ids)
        done = total - sum(1 for _ in self._ids(after)) if total is not None and after else 0
        for ids in in_chunks(self._ids(after), CHUNK):
            self._do(ids)
            done += len(ids)
            self._options.progress(done, total)
            self._keep(self._collection.documents.key(ids[-1]))
        if self._is_kept:
            self._collection.store.delete(self._key)
        return self._report

    def _ids(self, after: str | None) -> Iterator[str]:
        """The documents to visit after this one, by key."""
        collection = self._collection
        if self._options.filter is None:
            for entity_id, version in collection.latest_versions(after):
                if not version.is_delete_marker:
                    yield entity_id
            return
        rows = self._model.find_all(filter=self._options.filter, select=["id"])
        keys = sorted((collection.documents.key(str(row["id"])), str(row["id"])) for row in rows)
        yield from (entity_id for key, entity_id in keys if after is None or key > after)

    # One chunk

    def _do(self, ids: Sequence[str]) -> None:
        """Read, change and save them. Those that could not be saved together are done one by one."""
        wanted: dict[str, DocumentDict] = {}
        for found in self._model.find_many(ids):
            self._report.failed.pop(found.id, None)
            if found.document is None and found.error is None:
                continue  # deleted since the listing
            self._report.looked_at += 1
            if isinstance(found.error, Invalid):
                self._attempt(found.id, self._mend)
            elif found.error is not None or found.document is None:
                self._report.failed[found.id] = str(found.error)
            else:
                self._attempt(found.id, partial(self._prepare, read=found.document, wanted=wanted))
        for result in self._model.save_many(list(wanted.values()), **self._about) if wanted else ():
            if isinstance(result.error, Conflict):
                self._attempt(result.id, self._modify)
            elif result.error is not None and result.document is None:
                self._report.failed[result.id] = str(result.error)
            else:
                self._report.changed += 1

    def _attempt(self, entity_id: str, work: Callable[[str], None]) -> None:
        try:
            work(entity_id)
        except WormError as error:
            self._report.failed[entity_id] = str(error)
        except Exception as error:  # noqa: BLE001 - a function of the caller; its mistake is that of one document
            self._report.failed[entity_id] = f"{type(error).__name__}: {error}"

    def _prepare(self, entity_id: str, read: DocumentDict, wanted: dict[str, DocumentDict]) -> None:
        changed = self._changed(entity_id, read)
        if changed is not None:
            wanted[entity_id] = DocumentDict.of(changed, read.provenance)

    def _changed(self, entity_id: str, read: Mapping[str, JsonValue]) -> Document | None:
        """The document after the change; None if there is nothing to save."""
        before = dict(read)
        changed = {**self._change.apply(_copy(before)), "id": before["id"]}
        if is_same(changed, before):
            self._report.unchanged += 1
            return None
        if not self._options.dry_run:
            return changed
        self._collection.definition.check_document(changed, id=entity_id)
        self._report.changed += 1
        if len(self._report.examples) < EXAMPLES_MAX:
            self._report.examples.append((before, changed))
        return None

    def _modify(self, entity_id: str) -> None:
        """Another writer was faster: try again until the save succeeds."""
        was = self._report.unchanged

        def again(document: DocumentDict) -> DocumentDict:
            self._report.unchanged = was
            changed = self._changed(entity_id, document)
            return document if changed is None else DocumentDict.of(changed, document.provenance)

        self._model.modify(entity_id, again, **self._about)
        self._report.changed += self._report.unchanged == was

    def _mend(self, entity_id: str) -> None:
        """A stored document that breaks the schema, in exactly the version that was read."""
        clock, ids = self._collection.clock, self._collection.ids
        for attempt in attempts(ATTEMPTS, clock, ids, base_seconds=0.01, cap_seconds=0.5):
            found = self._collection.documents.current(entity_id)
            document = None if found is None else self._collection.documents.recorded(found)
            if found is None or document is None:
                raise Invalid("the stored object is not a JSON document", key=self._collection.documents.key(entity_id))
            changed = self._changed(entity_id, {**document, "id": document.get("id", entity_id)})
            if changed is None and not self._options.dry_run:
                self._report.unchanged -= 1
                self._collection.documents.parse(entity_id, found)  # says what is wrong with it
            if changed is None:
                return
            try:
                commit = self._collection.origins.commit_of(entity_id, found)
                version = DocumentVersion(found.etag, found.version_id, commit).encode()
                self._model.replace(changed, if_version=version, **self._about)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            self._report.changed += 1
            return

    # Checkpoint

    @property
    def _is_kept(self) -> bool:
        return not self._options.dry_run and self._change.name is not None

    @property
    def _key(self) -> str:
        asked = f"{dumps(self._change.name).decode()} {self._options.filter!r}"
        return f".worm.migrate/{self._model.name}-{sha256(asked.encode()).hexdigest()[:16]}.json"

    def _resumed(self) -> tuple[str | None, list[str]]:
        """Where an interrupted run stopped, and what had failed until then."""
        if self._options.restart or not self._is_kept:
            return None, []
        found = self._collection.store.get(self._key)
        try:
            shape = {} if found is None else loads_own(found.body, key=self._key)
            shapes.check(shape, CHECKPOINT, self._key)
        except Corrupt:
            return None, []  # from the beginning; the next checkpoint replaces it
        self._report.resumed = bool(shape.get("after"))
        return cast(str, shape.get("after", "")) or None, list(cast(JsonObject, shape.get("failed", {})))

    def _keep(self, after: str) -> None:
        if self._is_kept:
            failed = cast("JsonObject", dict(self._report.failed))
            self._collection.store.put(self._key, dumps({"version": 1, "after": after, "failed": failed}))


def _copy(document: Document) -> Document:
    return apply_rules((), document)
