"""`worm import`: a schema inferred from JSON documents that are already in the bucket.

The keys alone give the collections. `<parent>/<name>/<file>.json` is a candidate of `parent`. A parent is a
*collection* (its names are ids) if all names are UUIDs, ULIDs or numbers, or if there are at least two and it is not a
folder. A single name is an id if it looks like one (`inv-001`), or if the parent's name is a plural (`invoices/acme`).
A *folder* also holds other collections, and its candidates are singletons (`org/settings/data.json` next to
`org/customers/...`). Anything deeper inside an entity's directory belongs to the entity and is skipped.

We read a limited sample of each collection to find its fields. A field gets the narrowest type that fits all sampled
values: integer and number give number, a date-time and another string give string, array items likewise, and objects
merge their properties. If the types do not mix (a string here, a number there), the field is left out of the schema,
because unknown fields are kept anyway; the report names it. A field is required if every sampled document has it and
none has it null. Documents that are not JSON are reported, not fatal. Inferred models keep an oplog, and collections a
manifest: those are the reason to import a bucket.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from worm.collections import layout
from worm.errors import Invalid, NotFound, show
from worm.formats import (
    FieldDef,
    IdType,
    JsonObject,
    JsonValue,
    ModelPath,
    Schema,
    decode_id,
    id_problem,
    is_datetime,
    load_schema,
    loads_document,
    path_name_problem,
    type_name,
)
from worm.store import Read, Store

OBJECT_DEPTH_MAX = 4  # deeper objects are declared without properties
PROPERTIES_MAX = 50  # an object with more distinct names is a map, not a record
KEYS_MAX = 1_000_000
SINGLETONS_MAX = 50  # per folder; more are documents without a collection directory
_ID_PREFERENCE: tuple[IdType, ...] = ("uuid", "ulid", "int", "slug")
Candidates = dict[str, dict[str, list[str]]]
"""By parent directory and name, the files under it."""
SAMPLES_MAX = 200
NOT_PLURAL = frozenset(
    {"settings", "preferences", "options", "news", "status", "analytics", "sales", "operations", "aws"}
)
"""Folder names that end like a plural."""
DOCUMENT_BYTES_MAX = 10 * 1024 * 1024
_SKIPPED_SHOWN_MAX = 20
_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Inferred:
    """The schema, and a report on how it was inferred."""

    schema: Schema
    report: InferReport


@dataclass(frozen=True, slots=True)
class InferReport:
    """All collections, and how many keys were skipped, with a few of them by name."""

    collections: tuple[CollectionReport, ...]
    skipped: int
    skipped_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What was found in one collection.

    `unreadable` has sampled keys with the reason. `left_out` has fields whose values have no common type or whose names
    cannot be declared. `foreign_ids` has sampled keys whose field `id` differs from the id in the key.
    """

    model: str
    path: str
    file: str
    documents: int
    sampled: int
    unreadable: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    foreign_ids: tuple[str, ...]


def infer_schema(
    store: Store, prefix: str = "", *, bucket: str | None = None, samples_max: int = SAMPLES_MAX
) -> Inferred:
    """Read the listing and up to `samples_max` documents of each collection. `NotFound` if there is no document."""
    groups, skipped = group_keys(listed.key for listed in store.list(prefix))
    models: JsonObject = {}
    reports: list[CollectionReport] = []
    for group in groups:
        sample = _read_sample(store, group, samples_max)
        path = _path(group)
        if not sample.documents or path is None:
            skipped += group.keys
            continue
        name = _model_name(group, models)
        fields, left_out = infer_fields(list(sample.documents.values()))
        models[name] = _model(group, path, fields)
        reports.append(_report(name, group, path, sample, left_out))
    if not models:
        place = store.url + (f" under {prefix}" if prefix else "")
        if not skipped:
            raise NotFound(f"there are no JSON documents at {place}")
        named = ", ".join(map(show, skipped[:3]))
        raise NotFound(
            f"none of {len(skipped):,} objects at {place} is a document of a collection: {named}",
            hint="a document's key is <collection>/<id>/<file>.json, with one file name per collection",
        )
    shape: JsonObject = {"version": "1.0", "bucket": bucket, "models": models}
    if bucket is None:
        del shape["bucket"]
    examples = tuple(skipped[:_SKIPPED_SHOWN_MAX])
    return Inferred(load_schema(shape), InferReport(tuple(reports), len(skipped), examples))


@dataclass(frozen=True, slots=True)
class _Sample:
    documents: dict[str, JsonObject]
    unreadable: tuple[tuple[str, str], ...]


def _read_sample(store: Store, group: Group, samples_max: int) -> _Sample:
    keys = _spread(group.keys, samples_max)
    documents: dict[str, JsonObject] = {}
    unreadable: list[tuple[str, str]] = []
    for key, found in zip(keys, store.get_many([Read(key) for key in keys], max_bytes=DOCUMENT_BYTES_MAX), strict=True):
        if found is None:
            continue  # deleted after the listing
        try:
            if isinstance(found, Exception):
                raise found
            documents[key] = loads_document(found.body, max_bytes=DOCUMENT_BYTES_MAX)
        except Invalid as error:
            unreadable.append((key, error.message))
    return _Sample(documents, tuple(unreadable))


def _spread(keys: Sequence[str], samples_max: int) -> list[str]:
    """At most `samples_max` keys, evenly over the whole range."""
    if len(keys) <= samples_max:
        return list(keys)
    return [keys[at * len(keys) // samples_max] for at in range(samples_max)]


def _path(group: Group) -> ModelPath | None:
    folders = tuple(group.directory.split("/")[:-1])
    path = ModelPath(folders, group.collection, id_type_of(group.ids) if group.ids else None)
    try:
        return ModelPath.parse(str(path))
    except ValueError:  # too long for a model's directory: reported as skipped
        return None


def _model(group: Group, path: ModelPath, fields: JsonObject) -> JsonObject:
    model: JsonObject = {"path": str(path), "file": group.file, "fields": fields, "oplog": True}
    if group.ids:
        model["manifest"] = {"enabled": True}
    return model


def _report(name: str, group: Group, path: ModelPath, sample: _Sample, left_out: list[str]) -> CollectionReport:
    foreign = tuple(
        key
        for key, document in sample.documents.items()
        if group.ids and "id" in document and str(document["id"]) != decode_id(key.split("/")[-2])
    )
    return CollectionReport(
        model=name,
        path=str(path),
        file=group.file,
        documents=len(group.keys),
        sampled=len(sample.documents) + len(sample.unreadable),
        unreadable=sample.unreadable,
        left_out=tuple(left_out),
        foreign_ids=foreign,
    )


def _model_name(group: Group, taken: Container[str]) -> str:
    """`order-lines` gives OrderLine; a singleton keeps its plural (`settings` gives Settings)."""
    words = _WORD.findall(group.collection) or ["Model"]
    if group.ids:
        words[-1] = _singular(words[-1])
    base = "".join(word[:1].upper() + word[1:] for word in words)[:90]
    base = base if base[0].isalpha() else f"Model{base}"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}{number}", number + 1
    return name


def _singular(word: str) -> str:
    for plural, singular in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ss", "ss")):
        if word.endswith(plural) and len(word) > len(plural):
            return word[: -len(plural)] + singular
    return word[:-1] if word.endswith("s") and len(word) > 1 else word


@dataclass(frozen=True, slots=True)
class Group:
    """The documents of one future model. `ids` is empty for a singleton."""

    directory: str
    file: str
    ids: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        if not self.ids:
            return [f"{self.directory}/{self.file}"]
        return [f"{self.directory}/{name}/{self.file}" for name in self.ids]

    @property
    def collection(self) -> str:
        return self.directory.rpartition("/")[2]


def group_keys(keys: Iterable[str]) -> tuple[list[Group], list[str]]:
    """The groups, and the keys that belong to none."""
    candidates, skipped = _candidates(keys)
    groups: list[Group] = []
    collections: list[str] = []
    for parent in sorted(candidates, key=lambda name: (name.count("/"), name)):
        members = candidates[parent]
        if any(f"{parent}/".startswith(f"{collection}/") for collection in collections):
            skipped += _all_keys(parent, members)
            continue
        if _is_collection(parent, members, candidates):
            collections.append(parent)
            found, left = _collection(parent, members)
        else:
            found, left = _singletons(parent, members)
        groups += found
        skipped += left
    return _one_per_collection_name(groups, skipped)


def id_type_of(ids: Iterable[str]) -> IdType:
    """The narrowest id type of all these ids."""
    names = list(ids)
    for id_type in _ID_PREFERENCE:
        if all(id_problem(id_type, name) is None for name in names):
            return id_type
    return "string"


def _candidates(keys: Iterable[str]) -> tuple[Candidates, list[str]]:
    candidates: Candidates = {}
    skipped: list[str] = []
    for at, key in enumerate(keys):
        if at >= KEYS_MAX:
            raise Invalid(f"there are more than {KEYS_MAX} keys", hint="give a longer prefix")
        if layout.is_system_key(key):
            continue
        *parents, file = key.split("/")
        if not parents or not file.endswith(".json") or not _can_be_document(parents, file):
            skipped.append(key)
            continue
        candidates.setdefault("/".join(parents[:-1]), {}).setdefault(parents[-1], []).append(file)
    return candidates, skipped


def _can_be_document(parents: list[str], file: str) -> bool:
    """The last folder may be any id; the schema names the folders above it, and the file."""
    named = decode_id(parents[-1])
    is_id = named is not None and id_problem("string", named) is None
    return is_id and not any(path_name_problem(part) for part in (*parents[:-1], file))


def _is_collection(parent: str, members: Mapping[str, list[str]], candidates: Candidates) -> bool:
    if not parent:
        return False
    if id_type_of(members) in ("uuid", "ulid", "int"):
        return True
    prefix = f"{parent}/"
    is_folder = any(
        other.startswith(prefix) and other[len(prefix) :].partition("/")[0] not in members for other in candidates
    )
    return not is_folder and (len(members) > 1 or _looks_like_a_collection(parent, next(iter(members))))


def _looks_like_a_collection(parent: str, member: str) -> bool:
    """For a single document: `invoices/inv-001` and `customers/acme` look like one, `org/billing` and `settings/app` do
    not."""
    word = (_WORD.findall(parent.rpartition("/")[2].lower()) or [""])[-1]
    is_plural = _singular(word) != word and word not in NOT_PLURAL
    return is_plural or any(character.isdigit() for character in member)


def _collection(parent: str, members: Mapping[str, list[str]]) -> tuple[list[Group], list[str]]:
    """The most common file name is the document; ties go to the first by name."""
    counts = Counter(file for files in members.values() for file in files)
    document = min(counts, key=lambda file: (-counts[file], file))
    ids = tuple(sorted(name for name, files in members.items() if document in files))
    left = [key for key in _all_keys(parent, members) if not key.endswith(f"/{document}")]
    return [Group(parent, document, ids)], left


def _singletons(parent: str, members: Mapping[str, list[str]]) -> tuple[list[Group], list[str]]:
    """A directory with exactly one file is a singleton; directories that look like entities without a collection are
    not."""
    named = {
        name: files
        for name, files in members.items()
        if id_type_of([name]) in ("slug", "string") and not path_name_problem(name)
    }
    fitting = {name: files[0] for name, files in named.items() if len(files) == 1}
    if len(fitting) > SINGLETONS_MAX:
        fitting = {}
    groups = [Group(f"{parent}/{name}" if parent else name, file) for name, file in fitting.items()]
    return groups, _all_keys(parent, {name: files for name, files in members.items() if name not in fitting})


def _all_keys(parent: str, members: Mapping[str, list[str]]) -> list[str]:
    prefix = f"{parent}/" if parent else ""
    return [f"{prefix}{name}/{file}" for name, files in members.items() for file in files]


def _one_per_collection_name(groups: list[Group], skipped: list[str]) -> tuple[list[Group], list[str]]:
    """Two collections of one name would share system directories; the one with more documents wins."""
    kept: dict[str, Group] = {}
    for group in groups:
        rival = kept.get(group.collection)
        if rival is None:
            kept[group.collection] = group
            continue
        winner, loser = (group, rival) if len(group.ids) > len(rival.ids) else (rival, group)
        kept[group.collection] = winner
        skipped += loser.keys
    return list(kept.values()), skipped


def infer_fields(documents: Sequence[JsonObject], *, path: str = "", depth: int = 0) -> tuple[JsonObject, list[str]]:
    """Definitions by field name, and the (dotted) fields that are left out because their values have no common type."""
    fields: JsonObject = {}
    left_out: list[str] = []
    for name in dict.fromkeys(name for document in documents for name in document):
        if not path and name == "id":
            continue
        where = f"{path}.{name}" if path else name
        if not FieldDef.is_name(name):
            left_out.append(where)
            continue
        values = [document[name] for document in documents if document.get(name) is not None]
        if not values:
            continue
        definition, nested = _infer_field(values, where, depth)
        left_out += nested
        if definition is None:
            left_out.append(where)
            continue
        if len(values) == len(documents):
            definition["required"] = True
        fields[name] = definition
    return fields, left_out


def _infer_field(values: Sequence[JsonValue], path: str, depth: int) -> tuple[JsonObject | None, list[str]]:
    kind = widest({kind_of(value) for value in values})
    if kind is None:
        return None, []
    definition: JsonObject = {"type": kind}
    if kind == "array":
        items = [item for value in values if isinstance(value, list) for item in value]
        if items and all(item is not None for item in items):
            inner, left_out = _infer_field(items, f"{path}[]", depth)
            if inner is not None:
                definition["items"] = inner["type"] if len(inner) == 1 else inner
            return definition, left_out
    elif kind == "object" and depth < OBJECT_DEPTH_MAX:
        objects = [value for value in values if isinstance(value, dict)]
        if len({name for value in objects for name in value}) <= PROPERTIES_MAX:
            properties, left_out = infer_fields(objects, path=path, depth=depth + 1)
            if properties:
                definition["properties"] = properties
            return definition, left_out
    return definition, []


def kind_of(value: JsonValue) -> str:
    """The field type of one value."""
    if isinstance(value, str):
        return "datetime" if is_datetime(value) else "string"
    return type_name(value)


def widest(kinds: set[str]) -> str | None:
    """The narrowest type that covers all of these, or None."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds == {"integer", "number"}:
        return "number"
    return "string" if kinds == {"datetime", "string"} else None
