"""Layers: storing one, and finding versions of pages in those that the root names.

The root says which layers may have a page: by range of pages, by LSNs, and by a filter for each delta that is newer
than the images. Layers are asked from the newest to the oldest, down to an image. Asking a layer takes two ranged GETs,
its index and one block, each kept in the cache. The same holds for a read of a page in a database of any size, because
filters leave one layer to ask. A small layer is read completely, with one GET: a request costs more than its bytes. If
a candidate may turn out not to have the page, it is asked together with the next one.

For scans and compactions, all pages are divided into *ranges*, each with the layers that together give its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from heapq import merge
from itertools import islice

from worm.errors import Corrupt, Unavailable
from worm.log import DbKeys, hints
from worm.pages.cache import BlockCache
from worm.pages.filters import KeyFilter, hashed
from worm.pages.layer_file import Block, BlockRef, BuiltLayer, LayerIndex, PageVersion
from worm.pages.layer_name import LayerName
from worm.pages.manifest import LEVELS, Layer, PageBranch, Pages
from worm.store import Lost, Store, in_parallel

Bounds = tuple[str, str | None]
TOGETHER_MAX = 4
WHOLE_BYTES = 512 * 1024
"""The largest layer that is read in one piece: sending it takes a store a fraction of its response time."""
RUN_BYTES = 4 * 1024 * 1024
"""How many bytes one request gets when a layer is read from end to end."""


class LayerGone(Unavailable):
    """A layer is missing: a newer root may say why."""

    explained_as = "Unavailable"

    def __init__(self, layer: Layer, key: str) -> None:
        super().__init__(
            "a layer is missing", key=key, hint="the root has changed, or the database is damaged: try again"
        )
        self.layer = layer

    def check(self, pages: Pages) -> None:
        """Raise `Corrupt` if the current root still names it."""
        if any(self.layer.path == layer.path for branch in pages.branches.values() for layer in branch.layers):
            raise Corrupt("a layer that the root names is gone", key=self.key, hint=hints.BY_HAND) from self


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layer, and the LSN up to which its versions count."""

    layer: Layer
    lsn: int

    @property
    def is_sure(self) -> bool:
        """Whether it will have the page, according to the root."""
        return self.layer.is_image or (self.layer.filter is not None and self.layer.high_lsn <= self.lsn)


class Layers:
    """The layers of one root, in the order in which they are asked. Made once per root."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._deltas: dict[str, list[tuple[int, int, str, str, Layer]]] = {}
        self._images: dict[str, list[Layer]] = {}
        self._filters: dict[str, KeyFilter] = {}
        for name, branch in pages.branches.items():
            newest_first = sorted(branch.layers, key=lambda layer: -layer.high_lsn)
            self._deltas[name] = [
                (layer.high_lsn, layer.low_lsn, layer.low, layer.high, layer)
                for layer in newest_first
                if not layer.is_image
            ]
            self._images[name] = [layer for layer in newest_first if layer.is_image]

    def candidates(self, name: str, page: str, lsn: int) -> list[Candidate]:
        """The layers that may have the newest version up to the LSN, newest first."""
        found: list[Candidate] = []
        # Computed once for all filters: hashing takes most of the time of a read from memory.
        hashes: tuple[int, int] | None = None
        for current, _, at in self.pages.lineage(name, lsn):
            image = self.image(current, page, at)
            floor = -1 if image is None else image.high_lsn
            for high_lsn, low_lsn, low, high, delta in self._deltas[current]:
                if high_lsn <= floor:
                    break
                if low_lsn <= at and low <= page <= high:
                    hashes = hashes or hashed(page)
                    if self._may_have(delta, hashes):
                        found.append(Candidate(delta, at))
            if image is not None:
                found.append(Candidate(image, at))
                break
        return found

    def image(self, name: str, page: str, lsn: int) -> Layer | None:
        """The newest image of a branch that covers the page."""
        for image in self._images[name]:
            if image.high_lsn <= lsn and image.spans(page):
                return image
        return None

    def _may_have(self, delta: Layer, hashes: tuple[int, int]) -> bool:
        known = self._filters.get(delta.path)
        if known is None:
            if delta.filter is None:
                return True
            known = self._filters[delta.path] = KeyFilter.decode(delta.filter, delta.path)
        return known.may_have_hashed(hashes)


def put_layer(store: Store, keys: DbKeys, name: LayerName, built: BuiltLayer) -> Layer:
    """Store a layer under its unique name. Returns its description for the root. Until an image gets its range, it only
    covers the pages that it has."""
    key = f"{keys.directory}{name}"
    outcome = store.put_if_absent(key, built.body)
    if isinstance(outcome, Lost) and outcome.current.body != built.body:
        raise Corrupt("a different object already has the name of a new layer", key=key, hint=hints.BY_HAND)
    is_image = name.kind == "image"
    return Layer(
        path=key.removeprefix(DbKeys(keys.db_id).directory),
        level=LEVELS.index(name.kind),
        low=built.low,
        high=built.high,
        low_lsn=name.low if is_image else built.low_lsn,
        high_lsn=name.high if is_image else built.high_lsn,
        size=len(built.body),
        index=built.index_offset,
        sha256=built.digest,
        pages=built.pages,
        versions=built.versions,
        raw=built.raw_bytes,
        filter=None if is_image else built.filter.encode(),
    )


class LayerReader:
    """Reads layers of a database. Thread-safe."""

    def __init__(self, store: Store, keys: DbKeys, cache: BlockCache) -> None:
        self.cache = cache
        self._store = store
        self._directory = keys.directory

    def find_many(self, layers: Layers, branch: str, pages: Sequence[str], lsn: int) -> dict[str, PageVersion | None]:
        """The newest version of each page up to the LSN; None if there is none. Requests are sent concurrently."""
        waiting = {page: layers.candidates(branch, page, lsn) for page in dict.fromkeys(pages)}
        found: dict[str, PageVersion | None] = dict.fromkeys(waiting)
        while waiting := {page: candidates for page, candidates in waiting.items() if candidates}:
            waves = {page: _together(candidates) for page, candidates in waiting.items()}
            answers = iter(self._answers([(page, one) for page, wave in waves.items() for one in wave]))
            rest: dict[str, list[Candidate]] = {}
            for page, wave in waves.items():
                hits = [version for version in islice(answers, len(wave)) if version is not None]
                if hits:
                    found[page] = hits[0]
                else:
                    rest[page] = waiting[page][len(wave) :]
            waiting = rest
        return found

    def _answers(self, asked: Sequence[tuple[str, Candidate]]) -> list[PageVersion | None]:
        """What each of these layers has for the page: first all indexes are read, then all blocks."""
        layers = {one.layer.path: one.layer for _, one in asked}
        indexes = dict(zip(layers, in_parallel(self.index, layers.values()), strict=True))
        places: list[tuple[str, int] | None] = []
        wanted: dict[tuple[str, int], tuple[Layer, BlockRef]] = {}
        for page, one in asked:
            index = indexes[one.layer.path]
            ref = index.block_for(page, one.lsn) if index.filter.may_have(page) else None
            places.append(None if ref is None else (one.layer.path, ref.offset))
            if ref is not None:
                wanted[one.layer.path, ref.offset] = (one.layer, ref)
        blocks = dict(zip(wanted, in_parallel(lambda item: self.block(*item), wanted.values()), strict=True))
        return [
            None if place is None else blocks[place].find(page, one.lsn)
            for place, (page, one) in zip(places, asked, strict=True)
        ]

    def index(self, layer: Layer) -> LayerIndex:
        key = self._directory + layer.path
        return self.cache.index(key, lambda: self._piece(layer, layer.index, layer.size - layer.index))

    def block(self, layer: Layer, ref: BlockRef) -> Block:
        key = self._directory + layer.path
        return self.cache.block(key, ref.offset, lambda: self._piece(layer, ref.offset, ref.length))

    def versions(self, layer: Layer, start: str = "", end: str | None = None) -> Iterator[PageVersion]:
        """All versions that a layer has of the pages from `start` up to `end`, in order. Not through the cache."""
        key = self._directory + layer.path
        refs = list(self.index(layer).blocks_between(start, end))
        while refs:
            run = _run(refs)
            first = run[0].offset
            body = self._range(layer, first, run[-1].offset + run[-1].length - first)
            for ref in run:
                at = ref.offset - first
                for version in Block.decode(body[at : at + ref.length], key, ref.offset).versions():
                    if start <= version.page and (end is None or version.page < end):
                        yield version
            refs = refs[len(run) :]

    def _piece(self, layer: Layer, start: int, length: int) -> bytes:
        """A small layer is read in one piece, so the next piece is already there. In a damaged layer, each piece is
        read separately, so that undamaged ones stay readable."""
        if layer.size <= WHOLE_BYTES:
            key = self._directory + layer.path
            with suppress(Corrupt):
                return self.cache.whole(key, lambda: self._whole(layer)).body[start : start + length]
        return self._range(layer, start, length)

    def _whole(self, layer: Layer) -> bytes:
        body = self._range(layer, 0, layer.size)
        if sha256(body).hexdigest() != layer.sha256:
            key = self._directory + layer.path
            raise Corrupt("its bytes differ from those in the root's record", key=key, hint=hints.BY_HAND)
        return body

    def _range(self, layer: Layer, start: int, length: int) -> bytes:
        key = self._directory + layer.path
        body = self._store.get_range(key, start, length)
        if body is None:
            raise LayerGone(layer, key)
        if len(body) != length:
            what = f"it has {len(body)} bytes at byte {start}, but the root says {length}"
            raise Corrupt(what, key=key, hint=hints.BY_HAND)
        return body


def _together(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates up to the first that is sure to have the page."""
    for at, one in enumerate(candidates[:TOGETHER_MAX], start=1):
        if one.is_sure:
            return candidates[:at]
    return candidates[:TOGETHER_MAX]


def _run(refs: Sequence[BlockRef]) -> Sequence[BlockRef]:
    """The adjacent blocks from the first one on, for one request."""
    first, at = refs[0], 1
    while at < len(refs):
        before, ref = refs[at - 1], refs[at]
        if ref.offset != before.offset + before.length or ref.offset + ref.length - first.offset > RUN_BYTES:
            break
        at += 1
    return refs[:at]


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages from `start` up to `end`, and the layers that together give their content."""

    start: str
    end: str | None
    candidates: Sequence[Candidate]


def page_ranges(pages: Pages, name: str, lsn: int, start: str = "", end: str | None = None) -> list[PageRange]:
    """These pages at the LSN (without what is not applied yet), in order. Nothing older than an image is read for the
    pages that it covers: older layers may have deleted pages whose deletion is no longer in any layer."""
    found = _ranges(list(pages.lineage(name, lsn)), (start, end), [])
    return sorted(found, key=lambda one: one.start)


def _ranges(
    lineage: Sequence[tuple[str, PageBranch, int]], gap: Bounds, above: Sequence[Candidate]
) -> Iterator[PageRange]:
    _, branch, at = lineage[0]
    deltas = [layer for layer in branch.layers if not layer.is_image and layer.low_lsn <= at]
    images = [layer for layer in branch.layers if layer.is_image and layer.high_lsn <= at]
    missing = [gap]
    for image in sorted(images, key=lambda layer: -layer.high_lsn):
        left: list[Bounds] = []
        for one in missing:
            inside = within(one, (image.start, image.end))
            if inside is not None:
                newer = [Candidate(delta, at) for delta in deltas if delta.high_lsn > image.high_lsn]
                yield _range_of(inside, [*above, *newer, Candidate(image, at)])
            left += without(one, image.start, image.end)
        missing = left
    own = [*above, *(Candidate(delta, at) for delta in deltas)]
    for one in missing:
        if len(lineage) > 1:
            yield from _ranges(lineage[1:], one, own)
        else:
            yield _range_of(one, own)


def _range_of(bounds: Bounds, candidates: Sequence[Candidate]) -> PageRange:
    return PageRange(*bounds, [one for one in candidates if one.layer.overlaps(*bounds)])


def within(one: Bounds, other: Bounds) -> Bounds | None:
    """The intersection of two ranges of pages."""
    start = max(one[0], other[0])
    ends = [end for end in (one[1], other[1]) if end is not None]
    end = min(ends, default=None)
    return None if end is not None and start >= end else (start, end)


def without(gap: Bounds, start: str, end: str | None) -> Iterator[Bounds]:
    """The parts of a range of pages outside another one."""
    low, high = gap
    if (high is not None and start >= high) or (end is not None and end <= low):
        yield gap
        return
    if low < start:
        yield low, start
    if end is not None and (high is None or end < high):
        yield end, high


def newest(versions: Iterator[tuple[PageVersion, int]]) -> Iterator[PageVersion]:
    """From versions sorted by page, with the LSN up to which they count: the newest of each page, including
    deletions."""
    best: PageVersion | None = None
    for version, limit in versions:
        if version.lsn > limit:
            continue
        if best is not None and best.page != version.page:
            yield best
            best = None
        if best is None or version.lsn > best.lsn:
            best = version
    if best is not None:
        yield best


def merged(reader: LayerReader, span: PageRange) -> Iterator[tuple[PageVersion, int]]:
    """The versions of a range in order, each with the LSN up to which its layer counts."""

    def limited(one: Candidate) -> Iterator[tuple[PageVersion, int]]:
        return ((version, one.lsn) for version in reader.versions(one.layer, span.start, span.end))

    return merge(*map(limited, span.candidates), key=lambda item: (item[0].page, item[0].lsn))
