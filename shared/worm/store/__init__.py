"""Buckets, directories and process memory behind one interface; documents reach storage only through here.

All stores keep one contract (`Store`). A conditional write is `Won`, `Lost`, `Gone`, or raises `CommitStateUnknown`:
unclear answers are resolved here, and no other room sees the HTTP status of a write. `CasFile` changes one object
by compare-and-swap under its `Rules`. No document, no schema and no meaning of a key is known here.

- *version*: one state of a key that the store keeps.
- *attempt*: one conditional PutObject, sent once.
- `bucket_settings`: the settings of a bucket, for `worm attach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.store import bucket_settings
    from worm.store.base import (
        METADATA_BYTES_MAX,
        NULL_VERSION,
        Durability,
        Gone,
        IfAbsent,
        IfMatch,
        Listed,
        Lost,
        NotModified,
        Object,
        ObjectInfo,
        Put,
        Read,
        RequestMeter,
        Store,
        Version,
        Won,
        acceptable,
        check_store,
        is_directory,
        is_remote,
        metered,
    )
    from worm.store.cas import CasFile, Invariant, InvariantBroken, Rules
    from worm.store.memory import MemoryStore
    from worm.store.open import in_the_way, irregular_files, open_store, split_url
    from worm.store.parallel import THREADS, Pool, Portions, in_chunks, in_parallel
    from worm.store.posix import fcntl
    from worm.store.probe import PROBE_PREFIX, ensure_safe, ensure_safe_once, trust
    from worm.store.s3 import DERIVED_TAG, S3Store
    from worm.store.tree import keep_access
else:
    __getattr__ = door(
        __name__,
        """
        base: Durability Gone IfAbsent IfMatch Listed Lost METADATA_BYTES_MAX NULL_VERSION NotModified Object ObjectInfo
        base: Put Read RequestMeter Store Version Won acceptable check_store is_directory is_remote metered
        bucket_settings:
        cas: CasFile Invariant InvariantBroken Rules
        memory: MemoryStore
        open: in_the_way irregular_files open_store split_url
        parallel: Pool Portions THREADS in_chunks in_parallel
        posix: fcntl
        probe: PROBE_PREFIX ensure_safe ensure_safe_once trust
        s3: DERIVED_TAG S3Store
        tree: keep_access
        """,
    )
