"""`worm import`: a schema inferred from JSON documents that are already in the bucket.

Collections are found from the keys alone (`infer_groups.py`); a bounded sample of each is read for its fields.

Types are the widest that hold for all sampled values: integer and number give number, a date-time and another string
give string, array items likewise, objects merge their properties. Values of types that do not mix (a string here, a
number there) leave the field out of the schema, since unknown fields are kept anyway; the report names it. A field is
required when every sampled document has it and none has it null. Documents that are not JSON are reported, not fatal.
Inferred models keep an oplog, and collections a manifest: that is what one imports a bucket for.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from worm.codec.strict_json import JsonObject, loads_document
from worm.collections.infer_groups import Group, group_keys, id_type_of
from worm.collections.infer_types import infer_fields
from worm.errors import Invalid, NotFound
from worm.schema import Schema, load_schema
from worm.schema.paths import ModelPath, parse_path
from worm.store.base import Read, Store

SAMPLES_MAX = 200
DOCUMENT_BYTES_MAX = 10 * 1024 * 1024
_SKIPPED_SHOWN_MAX = 20
_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What was found in one collection.

    `unreadable` are sampled keys with the reason; `left_out` fields whose values have no common type or whose names
    cannot be declared; `foreign_ids` sampled keys whose field `id` is not the id of the key.
    """

    model: str
    path: str
    file: str
    documents: int
    sampled: int
    unreadable: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    foreign_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InferReport:
    """All collections, and how many keys were left out, with some of them by name."""

    collections: tuple[CollectionReport, ...]
    skipped: int
    skipped_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inferred:
    """The schema and how it came about."""

    schema: Schema
    report: InferReport


@dataclass(frozen=True, slots=True)
class _Sample:
    documents: dict[str, JsonObject]
    unreadable: tuple[tuple[str, str], ...]


def infer_schema(
    store: Store, prefix: str = "", *, bucket: str | None = None, samples_max: int = SAMPLES_MAX
) -> Inferred:
    """Read the listing and up to `samples_max` documents of each collection. `NotFound` when there is no document."""
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
        raise NotFound(f"no JSON documents at {store.url}" + (f" under {prefix}" if prefix else ""))
    shape: JsonObject = {"version": "1.0", "bucket": bucket, "models": models}
    if bucket is None:
        del shape["bucket"]
    examples = tuple(skipped[:_SKIPPED_SHOWN_MAX])
    return Inferred(load_schema(shape), InferReport(tuple(reports), len(skipped), examples))


def _read_sample(store: Store, group: Group, samples_max: int) -> _Sample:
    keys = _spread(group.keys, samples_max)
    documents: dict[str, JsonObject] = {}
    unreadable: list[tuple[str, str]] = []
    for key, found in zip(keys, store.get_many([Read(key) for key in keys], max_bytes=DOCUMENT_BYTES_MAX), strict=True):
        if found is None:
            continue  # deleted since the listing
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
        return parse_path(str(path))
    except ValueError:  # longer than a model's directory may be: reported as skipped
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
        if group.ids and "id" in document and str(document["id"]) != key.split("/")[-2]
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
