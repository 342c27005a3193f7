"""Sentinels: small `.worm` files that tell any tool what a bucket and a collection hold.

They are notes for readers; nothing in this library decides by them.
"""

from __future__ import annotations

from worm.codec.strict_json import JsonObject, JsonValue, dumps_document
from worm.schema import ModelDef, Schema


def bucket_sentinel(schema: Schema, bucket: str) -> bytes:
    """`.worm` at the root: models, and the layout that tells where system directories lie."""
    storage: JsonObject = {"layout": schema.storage.layout}
    for directory in ("oplog", "snapshots", "trash"):
        override = getattr(schema.storage, directory)
        if override is not None:
            storage[directory] = override
    models: list[JsonValue] = list(schema.models)
    shape: JsonObject = {"schema": schema.version, "bucket": bucket, "models": models, "storage": storage}
    return dumps_document(shape)


def collection_sentinel(model: ModelDef, *, count: JsonValue = 0, last_modified: JsonValue = None) -> bytes:
    """`.worm` of a collection. `idType` is null for a singleton, `lastModified` until something is known."""
    shape: JsonObject = {
        "model": model.name,
        "idType": model.id_type,
        "mode": model.mode,
        "oplog": model.oplog,
        "softDelete": model.soft_delete,
        "count": count,
        "lastModified": last_modified,
    }
    return dumps_document(shape)
