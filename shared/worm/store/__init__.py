"""The only room that talks to object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.store.base import (
        METADATA_BYTES_MAX,
        NULL_VERSION,
        PUT_ID,
        PUT_TRY,
        Attempt,
        AttemptOutcome,
        Condition,
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
        RequestCounter,
        RequestMeter,
        Store,
        Version,
        Won,
        acceptable,
        attempt_of,
        check_store,
        exact_etag,
        is_directory,
        is_remote,
        metered,
        same_version,
        whole_seconds,
    )
    from worm.store.bucket import MINIMUM_SIZE, SETTINGS, BucketSettings, Setting, Unreadable, same
    from worm.store.cas import CasFile, Invariant, InvariantBroken, Rules
    from worm.store.memory import MemoryStore
    from worm.store.open import bucket_and_prefix, in_the_way, irregular_files, open_store, split_url
    from worm.store.pace import far_apart
    from worm.store.parallel import THREADS, TURN_BYTES, Portions, Postponed, Room, carried, chunked, in_parallel
    from worm.store.posix import fcntl
    from worm.store.probe import PROBE_PREFIX, ensure_safe, ensure_safe_once, trust
    from worm.store.resolve import ResolvedWrites
    from worm.store.s3 import DERIVED_TAG, S3Store
    from worm.store.tree import keep_access
else:
    __getattr__ = door(
        __name__,
        """
        base: Attempt AttemptOutcome Condition Durability Gone IfAbsent IfMatch Listed Lost METADATA_BYTES_MAX
        base: NULL_VERSION NotModified Object ObjectInfo PUT_ID PUT_TRY Put Read RequestCounter RequestMeter Store
        base: Version Won acceptable attempt_of check_store exact_etag is_directory is_remote metered same_version
        base: whole_seconds
        bucket: BucketSettings MINIMUM_SIZE SETTINGS Setting Unreadable same
        cas: CasFile Invariant InvariantBroken Rules
        memory: MemoryStore
        open: bucket_and_prefix in_the_way irregular_files open_store split_url
        pace: far_apart
        parallel: Portions Postponed Room THREADS TURN_BYTES carried chunked in_parallel
        posix: fcntl
        probe: PROBE_PREFIX ensure_safe ensure_safe_once trust
        resolve: ResolvedWrites
        s3: DERIVED_TAG S3Store
        tree: keep_access
        """,
    )
