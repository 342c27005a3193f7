"""Checking a page store: every byte that a read could use. The root, the layers of all branches (checksums, indexes,
blocks, filters), the logs from their boundary on, pins, and the copy of the root that a repair would need.

It only reads, and writers may continue: objects that a newer root no longer names are not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Corrupt, WormError
from worm.log import CommitLogTools, DbKeys, LogProblem, LogRoot, Segment
from worm.pages.filters import KeyFilter
from worm.pages.invariants import PAGES
from worm.pages.layer_file import Block, LayerIndex
from worm.pages.manifest import Layer, PageBranch, Pages
from worm.pages.records import versions_of
from worm.pages.root import PagesRoot
from worm.store import Store

ROOT, LAYER, LOG, COPY = "root-damaged", "layer-damaged", "log-damaged", "copy-damaged"


def verify_pages(
    store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None
) -> Iterator[LogProblem]:
    """The problems of a page store or a space, one by one. `NotFound` if it does not exist."""
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    root = PagesRoot(store, db_id, clock=clock, ids=ids)
    try:
        pages = root.read()
    except Corrupt as damage:
        yield LogProblem(ROOT, damage.key or root.keys.root, damage.message)
        return
    yield from _root_problems(pages, root.keys.root)
    yield from _copy_problems(store, root.keys)
    for name, branch in sorted(pages.branches.items()):
        for layer in branch.layers:
            for problem in _layer_problems(store, root.keys.directory + layer.path, layer):
                if _is_named(root.read(), layer.path):
                    yield problem
        yield from _log_problems(store, DbKeys(db_id, branch.id), name, branch, root, clock, ids)


def _root_problems(pages: Pages, key: str) -> Iterator[LogProblem]:
    for holds in PAGES:
        if not holds(pages, pages):
            yield LogProblem(ROOT, key, f"an invariant does not hold: {holds.__name__.replace('_', ' ')}")
    for pin_id, pin in sorted(pages.pins.items()):
        owner = pages.branches.get(pin.branch)
        if owner is None or pin.lsn > owner.lsn:
            yield LogProblem(
                ROOT, key, f"pin {pin_id} names LSN {pin.lsn} of branch {pin.branch!r}, which does not exist"
            )


def _copy_problems(store: Store, keys: DbKeys) -> Iterator[LogProblem]:
    stored = store.get(keys.backup)
    if stored is None:
        yield LogProblem(COPY, keys.backup, "the copy of the root is missing; the next collection writes it")
        return
    try:
        LogRoot.decode(stored.body, stored.key)
    except Corrupt as damage:
        yield LogProblem(COPY, keys.backup, damage.message)


def _is_named(pages: Pages, path: str) -> bool:
    return any(path == layer.path for branch in pages.branches.values() for layer in branch.layers)


def _layer_problems(store: Store, key: str, layer: Layer) -> Iterator[LogProblem]:
    stored = store.get(key)
    if stored is None:
        yield LogProblem(LAYER, key, "the root names it, but it is missing")
        return
    body = stored.body
    if len(body) != layer.size or sha256(body).hexdigest() != layer.sha256:
        yield LogProblem(LAYER, key, "its bytes differ from those in the root's record")
    try:
        index = LayerIndex.decode(body[layer.index :], key)
    except Corrupt as damage:
        yield LogProblem(LAYER, key, damage.message)
        return
    pages: set[str] = set()
    versions = 0
    for ref in index.blocks:
        try:
            found = Block.decode(body[ref.offset : ref.offset + ref.length], key, ref.offset).versions()
        except Corrupt as damage:
            yield LogProblem(LAYER, key, damage.message, offset=ref.offset)
            continue
        pages |= {version.page for version in found}
        versions += len(found)
        outside = [version.lsn for version in found if not _holds(layer, version.page, version.lsn)]
        if outside:
            yield LogProblem(
                LAYER, key, f"LSN {outside[0]} is outside the range that the root gives", offset=ref.offset
            )
    if (len(pages), versions) != (layer.pages, layer.versions):
        yield LogProblem(LAYER, key, f"{versions} versions of {len(pages)} pages; the root says {layer.versions}")
    yield from _filter_problems(key, layer, index, pages)


def _holds(layer: Layer, page: str, lsn: int) -> bool:
    lowest = 0 if layer.is_image else layer.low_lsn
    return layer.low <= page <= layer.high and lowest <= lsn <= layer.high_lsn


def _filter_problems(key: str, layer: Layer, index: LayerIndex, pages: set[str]) -> Iterator[LogProblem]:
    """If the filter denies a page, reads never find it."""
    filters = [] if layer.is_image else [index.filter]
    if layer.filter is not None:
        try:
            filters.append(KeyFilter.decode(layer.filter, key))
        except Corrupt as damage:
            yield LogProblem(LAYER, key, damage.message)
    if not all(one.may_have(page) for one in filters for page in pages):
        yield LogProblem(LAYER, key, "its filter denies a page that it holds")


def _log_problems(
    store: Store, keys: DbKeys, name: str, branch: PageBranch, root: PagesRoot, clock: Clock, ids: Ids
) -> Iterator[LogProblem]:
    """Damage of the log, records that are not pages, and a log that ends before the applied slot."""
    last = 0
    try:
        with root.while_there(name, branch.id):
            for one in CommitLogTools(store, keys, clock=clock, ids=ids, must_exist=False).slots():
                last = max(last, one.slot)
                if one.damage is not None:
                    yield LogProblem(LOG, one.damage.key or keys.log, one.damage.message)
                if one.segment is not None:
                    yield from _record_problems(one.segment, keys)
    except WormError as damage:
        yield LogProblem(LOG, damage.key or keys.log, damage.message)
        return
    if last < branch.slot:
        yield LogProblem(LOG, keys.log, f"it ends with slot {last}, but slot {branch.slot} is already applied")


def _record_problems(segment: Segment, keys: DbKeys) -> Iterator[LogProblem]:
    key = keys.slot(segment.slot)
    try:
        list(versions_of(segment, 0, key))
    except Corrupt as damage:
        yield LogProblem(LOG, key, damage.message)
