"""From the log to layers: pages that are committed become delta layers, and the root names them.

Anybody may do it: the writer, the `apply` worker, somebody who wants to branch; several at once. What was applied is in
the root, and a flush is published only by whoever began where the root still stands. The layers of all others are never
named, and are swept up later. So a flush can be repeated, cut short at any request, and made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worm.clock import Ids
from worm.errors import Corrupt, Fenced
from worm.log.keys import DbKeys, flushed_name
from worm.log.root import BY_HAND
from worm.pages.layer_file import BuiltLayer, Version, build_layers
from worm.pages.manifest import Branch, Layer, Mark, Pages, PagesRoot
from worm.store.base import Lost, Store


@dataclass(frozen=True, slots=True)
class Flush:
    """What goes into layers: the log of a branch up to a slot and LSN, from `after` on."""

    branch: str
    id: str
    after_slot: int
    slot: int
    lsn: int
    epoch: int
    versions: Sequence[Version]


class Flusher:
    """Writes and publishes delta layers."""

    def __init__(self, store: Store, root: PagesRoot, ids: Ids) -> None:
        self._store = store
        self._root = root
        self._ids = ids

    def run(self, pages: Pages, flush: Flush) -> Pages:
        """Returns the root after it: ours, or that of somebody who was quicker."""
        branch = pages.branch(flush.branch)
        if branch.slot != flush.after_slot or branch.id != flush.id or flush.slot <= branch.slot:
            return pages
        layers = tuple(self._written(branch, pages, flush))
        mark = Mark(ms=self._time_of(branch, flush.slot), lsn=flush.lsn, slot=flush.slot)

        def published(now: Pages) -> Pages | None:
            found = now.branches.get(flush.branch)
            if found is None or found.id != flush.id or found.slot != flush.after_slot:
                return None
            raw, size = sum(one.raw for one in layers), sum(one.size for one in layers)
            written = found.written
            changed = found.model_copy(
                update={
                    "slot": flush.slot,
                    "lsn": flush.lsn,
                    "layers": trimmed((*found.layers, *layers), now.config.manifest_filter_bytes),
                    "marks": found.marked(mark),
                    "written": written.model_copy(
                        update={"applied": written.applied + raw, "flushed": written.flushed + size}
                    ),
                }
            )
            return now.with_branch(flush.branch, changed)

        return self._root.change(published)

    def _written(self, branch: Branch, pages: Pages, flush: Flush) -> list[Layer]:
        config, keys = pages.config, DbKeys(self._root.keys.db_id, branch.id)
        layers: list[Layer] = []
        if not flush.versions:
            return layers  # fences, or records of other rooms
        for built in build_layers(
            flush.versions,
            target_bytes=config.delta_layer_target_bytes,
            block_bytes=config.block_bytes,
            bits_per_key=config.filter_bits_per_page,
        ):
            name = flushed_name(branch.lsn + 1, flush.lsn, flush.epoch, self._ids.ulid())
            layers.append(put_layer(self._store, self._root.keys, keys.directory + name, built, level=0))
        return layers

    def _time_of(self, branch: Branch, slot: int) -> int:
        """When the store took the slot, in its own time."""
        key = DbKeys(self._root.keys.db_id, branch.id).slot(slot)
        info = self._store.head(key)
        if info is None:
            raise Fenced(
                f"slot {slot} is not there any more: somebody else has applied and collected it",
                key=key,
                hint="read the root again",
            )
        return int(info.last_modified.timestamp() * 1000)


def put_layer(
    store: Store,
    keys: DbKeys,
    key: str,
    built: BuiltLayer,
    *,
    level: int,
    lsn: int | None = None,
    start: str = "",
    end: str | None = None,
) -> Layer:
    """Store a layer under its name, which nobody else has; what the root will say of it."""
    outcome = store.put_if_absent(key, built.body)
    if isinstance(outcome, Lost) and outcome.current.body != built.body:
        raise Corrupt("another object has the name of a new layer", key=key, hint=BY_HAND)
    return Layer(
        path=key.removeprefix(keys.directory),
        level=level,
        low=built.low,
        high=built.high,
        low_lsn=built.low_lsn if lsn is None else lsn,
        high_lsn=built.high_lsn if lsn is None else lsn,
        size=len(built.body),
        index=built.index_offset,
        sha256=built.digest,
        pages=built.pages,
        versions=built.versions,
        raw=built.raw_bytes,
        start=start,
        end=end,
        filter=built.filter.encode() if level < 2 else None,
    )


def trimmed(layers: Sequence[Layer], filter_bytes: int) -> tuple[Layer, ...]:
    """The layers with filters for the newest deltas, as many as the root has room for, and none below an image that
    covers them: what is read there is the past."""
    room = filter_bytes
    floors = [layer for layer in layers if layer.is_image]
    kept: list[Layer] = []
    for layer in sorted(layers, key=lambda one: -one.high_lsn):
        if layer.filter is not None:
            room -= len(layer.filter)
            is_past = any(
                image.high_lsn >= layer.high_lsn and image.spans(layer.low) and image.spans(layer.high)
                for image in floors
            )
            if room < 0 or is_past:
                layer = layer.model_copy(update={"filter": None})
        kept.append(layer)
    return tuple(sorted(kept, key=lambda one: (one.high_lsn, one.path)))
