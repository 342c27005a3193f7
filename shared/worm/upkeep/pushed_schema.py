"""`worm push`: makes the schema the bucket's source of truth, and writes sentinels for other tools.

The schema object changes only by compare-and-swap against the one that was read. So of two concurrent pushes, the later
one gets an error and never silently undoes the other. A push is refused, unless forced, if it would leave existing
documents or their history behind: another path, id type, file, space or layout, no model for them, or nothing that
looks for archives.

*Sentinels* are small `.worm` files that describe a bucket or a collection to any tool. They are notes for readers;
nothing in this library depends on them.
"""

from __future__ import annotations

from dataclasses import field
from urllib.parse import urlsplit

from worm.collections import KeyKind, StorageResolver, layout
from worm.errors import Conflict, Corrupt, Hint, Invalid, NotFound
from worm.formats import (
    SINGLETON_ID,
    JsonObject,
    JsonValue,
    ModelDef,
    Schema,
    dumps_document,
    load_pushed,
    loads_document,
)
from worm.store import Lost, Object, Read, Store, Won
from worm.values import dataclass

PUSH = "push one with `worm push schema.json`"
NO_SCHEMA = Hint("give connect() a schema or models, and push it with db.push()", PUSH, PUSH)
STRANDED_HINT = Hint(
    "move the documents first, or push with force=True to leave them behind",
    "move the documents first, or push with --force to leave them behind",
)
_SENTINEL_ATTEMPTS_MAX = 5


@dataclass
class Adopted:
    """The result for the documents of one model that existed when its schema was pushed. `rows`: the number of rows of
    its table (None if it has no table). `claimed`: how many unique values were claimed for them. `conflicts`: values
    that several documents have. `problems`: by key, why documents were left as they are. `damaged`: by id, why a
    history cannot be continued; these documents are served."""

    model: str
    documents: int = 0
    recorded: int = 0
    rows: int | None = None
    claimed: int = 0
    conflicts: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, Corrupt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did. `removed`: models of the old schema that the new one lacks. `recording`: models that keep an
    oplog from now on. `adopted`: the models whose documents were checked."""

    schema_changed: bool
    schema_etag: str
    sentinels_written: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    recording: tuple[str, ...] = ()
    adopted: tuple[Adopted, ...] = ()


def load_pushed_schema(store: Store) -> Schema:
    """The schema in the bucket; `NotFound` if none was pushed, `Corrupt` if it is not a schema."""
    current = store.get(layout.SCHEMA_KEY)
    if current is None:
        raise NotFound(f"there is no schema at {store.url}", key=layout.SCHEMA_KEY, hint=NO_SCHEMA)
    return load_pushed(current.body, layout.SCHEMA_KEY)


def push_schema(store: Store, schema: Schema, *, force: bool = False) -> PushReport:
    """Write the schema and all sentinels. Raises `Invalid` for a change that would strand documents (see `force`),
    `Conflict` if somebody else pushed at the same time."""
    return push_over(store, store.get(layout.SCHEMA_KEY), schema, force=force)


def push_over(store: Store, current: Object | None, schema: Schema, *, force: bool = False) -> PushReport:
    """The same, replacing the schema that was read; `Conflict` if there is another one by now."""
    body = schema.to_json()
    previous = pushed_before(current, force=force)
    if current is not None and current.body == body:
        etag = current.etag
    else:
        if previous is not None and not force:
            _refuse_stranding(store, previous, schema)
        if previous is not None:
            _drop_neglected_files(store, previous, schema)
        etag = _swap(store, current, body)
    old = previous.models if previous else {}
    return PushReport(
        schema_changed=current is None or current.body != body,
        schema_etag=etag,
        sentinels_written=tuple(_write_sentinels(store, schema)),
        added=tuple(name for name in schema.models if name not in old),
        changed=tuple(name for name, model in schema.models.items() if name in old and old[name] != model),
        removed=tuple(name for name in old if name not in schema.models),
        recording=tuple(
            name
            for name, before in predecessors(previous, schema).items()
            if schema.models[name].oplog and not before.oplog
        ),
    )


def bucket_sentinel(schema: Schema, bucket: str) -> bytes:
    """`.worm` at the root: models, and the layout of the system directories."""
    storage: JsonObject = {"layout": schema.storage.layout}
    for directory in ("oplog", "snapshots", "trash"):
        override = getattr(schema.storage, directory)
        if override is not None:
            storage[directory] = override
    models: list[JsonValue] = list(schema.models)
    shape: JsonObject = {"schema": schema.version, "bucket": bucket, "models": models, "storage": storage}
    return dumps_document(shape)


def pushed_before(current: Object | None, *, force: bool = False) -> Schema | None:
    """The schema of the object that was read; a damaged one raises `Corrupt`, or with `force` counts as none."""
    if current is None:
        return None
    try:
        return load_pushed(current.body, layout.SCHEMA_KEY)
    except Corrupt:
        if force:
            return None
        raise


def _swap(store: Store, current: Object | None, body: bytes) -> str:
    if current is None:
        outcome: Won | Lost | object = store.put_if_absent(layout.SCHEMA_KEY, body)
    else:
        outcome = store.put_if_match(layout.SCHEMA_KEY, body, current.etag)
    if isinstance(outcome, Won):
        return outcome.etag
    if isinstance(outcome, Lost) and outcome.current.body == body:
        return outcome.current.etag
    raise Conflict(
        "another push changed the schema at the same time",
        key=layout.SCHEMA_KEY,
        expected=current.etag if current else None,
        found=outcome.current.etag if isinstance(outcome, Lost) else None,
        hint="check the bucket's schema, then push again",
    )


def predecessors(old: Schema | None, new: Schema) -> dict[str, ModelDef]:
    """For each new model's name, the old model that had its documents, whatever its name was."""
    by_directory = {} if old is None else {model.location.directory: model for model in old.models.values()}
    found = {name: by_directory.get(model.location.directory) for name, model in new.models.items()}
    return {name: before for name, before in found.items() if before is not None}


def _drop_neglected_files(store: Store, old: Schema, new: Schema) -> None:
    """A manifest that was not kept up to date does not become correct by maintaining it from now on; neither does an
    index. They are rebuilt."""
    resolver = StorageResolver(new)
    for name, before in predecessors(old, new).items():
        model = new.models[name]
        if model.folds_manifest and not before.folds_manifest:
            store.delete(resolver.manifest_key(name))
        fields, others = ({one.field for one in each.indexes.values()} for each in (before, model))
        for indexed in sorted(fields ^ others):
            store.delete(resolver.index_key(name, indexed))


def _refuse_stranding(store: Store, old: Schema, new: Schema) -> None:
    problems = stranding(store, old, new)
    if problems:
        raise Invalid(
            "; ".join(problems),
            key=layout.SCHEMA_KEY,
            hint=STRANDED_HINT,
        )


def stranding(store: Store, old: Schema, new: Schema) -> list[str]:
    """What a push would leave behind: documents without a model, or archives that nothing would read."""
    problems: list[str] = []
    for name, before in old.models.items():
        after = new.models.get(name) or successor(before, new)
        moves = _moves(before, after, old, new) if after else []
        if (moves or after is None) and _has_documents(store, old, before):
            what = f"changes its {', '.join(moves)}" if after else f"leaves it out ({before.path})"
            problems.append(f"{name} has documents, but the new schema {what}")
        if after is not None and before.archive_after is not None and after.archive_after is None:
            problems.append(f'{name} may have archives: set `archiveAfter` to "never" instead of removing it')
    return problems


def successor(before: ModelDef, new: Schema) -> ModelDef | None:
    """The model with another name that took over the place of this one."""
    place = before.location.directory
    return next((model for model in new.models.values() if model.location.directory == place), None)


def _moves(before: ModelDef, after: ModelDef, old: Schema, new: Schema) -> list[str]:
    """The parts of this change that move documents or what is kept about them."""
    moves = []
    if before.location.directory != after.location.directory:
        moves.append(f"path ({before.path} to {after.path})")
    if before.id_type != after.id_type:
        moves.append(f"id type ({before.id_type or 'singleton'} to {after.id_type or 'singleton'})")
    if before.space != after.space:
        moves.append(f"space ({before.space or 'none'} to {after.space or 'none'})")
    if before.space is not None and before.name != after.name:
        moves.append(f"name ({before.name} to {after.name}), which its space stores them under")
    if before.file != after.file:
        moves.append(f"file ({before.file} to {after.file})")
    for directory in ("oplog", "snapshots", "trash"):
        was, becomes = (getattr(schema.storage, f"{directory}_layout") for schema in (old, new))
        if was != becomes:
            moves.append(f"{directory} layout ({was} to {becomes})")
    return moves


def _has_documents(store: Store, schema: Schema, model: ModelDef) -> bool:
    """At most two listings, each read up to the first document. System names start with a dot, and "/" sorts right
    after the dot: the second listing begins after all of them."""
    resolver = StorageResolver(schema)
    if model.is_singleton:
        return store.head(resolver.document_key(model.name, SINGLETON_ID)) is not None
    prefix = resolver.collection_path(model.name)
    for listed in store.list(prefix):
        if listed.key.startswith(f"{prefix}."):
            break
        if resolver.parse(listed.key).kind is KeyKind.DOCUMENT:
            return True
    return any(
        resolver.parse(listed.key).kind is KeyKind.DOCUMENT for listed in store.list(prefix, start_after=f"{prefix}/")
    )


def _write_sentinels(store: Store, schema: Schema) -> list[str]:
    """The keys written. Sentinels that are already up to date are not rewritten."""
    resolver = StorageResolver(schema)
    keys = {name: resolver.collection_sentinel_key(name) for name in schema.models}
    found = store.get_many([Read(layout.BUCKET_SENTINEL), *(Read(key) for key in keys.values())])
    for item in found:
        if isinstance(item, Exception):
            raise item
    current = [item for item in found if not isinstance(item, Exception)]
    written = []
    body = bucket_sentinel(schema, schema.bucket or _bucket_name(store.url))
    if current[0] is None or current[0].body != body:
        store.put(layout.BUCKET_SENTINEL, body)
        written.append(layout.BUCKET_SENTINEL)
    for (name, key), held in zip(keys.items(), current[1:], strict=True):
        if _keep_sentinel(store, resolver, name, held):
            written.append(key)
    return written


def _keep_sentinel(store: Store, resolver: StorageResolver, name: str, held: Object | None) -> bool:
    """Bring one sentinel up to date, and keep the count and time that a worker may have written in the meantime."""
    key = resolver.collection_sentinel_key(name)
    for _ in range(_SENTINEL_ATTEMPTS_MAX):
        count, last_modified = _known_counts(held)
        body = resolver.collection_sentinel(name, count=count, last_modified=last_modified)
        if held is not None and held.body == body:
            return False
        outcome = store.put_if_match(key, body, held.etag) if held else store.put_if_absent(key, body)
        if isinstance(outcome, Won):
            return True
        held = outcome.current if isinstance(outcome, Lost) else None
    raise Conflict("the collection sentinel keeps changing", key=key, hint="push again")


def _known_counts(held: Object | None) -> tuple[JsonValue, JsonValue]:
    if held is None:
        return 0, None
    try:
        shape = loads_document(held.body)
    except Invalid:  # somebody's file, or damaged: a sentinel is only a note, so it is replaced
        return 0, None
    count = shape.get("count")
    known = count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0
    moment = shape.get("lastModified")
    return known, moment if isinstance(moment, str) else None


def _bucket_name(url: str) -> str:
    parts = urlsplit(url)
    return parts.netloc or parts.path.rstrip("/").rsplit("/", 1)[-1]
