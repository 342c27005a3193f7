"""One task of a compaction: some pieces of a branch become one merged delta or one image, each split by size.

A task can be done by any process and more than once: its layers have names of their own, and nobody sees them before
the root names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worm.clock import Ids
from worm.journal.keys import DbKeys
from worm.pages.cache import BlockCache
from worm.pages.config import PageConfig
from worm.pages.flush import put_layer
from worm.pages.keys import image_name, merged_name
from worm.pages.layer import Version, build_layers
from worm.pages.reading import LayerReader, Piece, merged, newest
from worm.pages.state import Layer
from worm.store.base import Store

INDEX_CACHE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """Make layers of these pieces: one merged delta, or an image at `lsn`. It can be sent to another process."""

    db_id: str
    branch_id: str
    epoch: int
    lsn: int
    low_lsn: int
    is_image: bool
    pieces: Sequence[Piece]
    config: PageConfig

    @property
    def target_bytes(self) -> int:
        """Of a layer that it makes."""
        return self.config.image_layer_target_bytes if self.is_image else self.config.delta_layer_target_bytes


def do_task(store: Store, task: Task, ids: Ids) -> list[Layer]:
    """Make the layers of a task and store them; nobody sees them yet."""
    keys, own = DbKeys(task.db_id), DbKeys(task.db_id, task.branch_id)
    reader = LayerReader(store, keys, BlockCache(INDEX_CACHE))
    built = build_layers(
        _contents(reader, task),
        target_bytes=task.target_bytes,
        block_bytes=task.config.block_bytes,
        bits_per_key=0
        if task.is_image
        else task.config.filter_bits_per_page,  # who asks an image has nobody else to ask
    )
    layers: list[Layer] = []
    start, end = task.pieces[0].start, task.pieces[-1].end
    for one in built:
        if not task.is_image:
            name = merged_name(task.low_lsn, task.lsn, task.epoch, ids.ulid())
            layers.append(put_layer(store, keys, own.directory + name, one, level=1))
            continue
        begin = one.low if layers else start
        if layers:
            layers[-1] = layers[-1].model_copy(update={"end": begin})
        name = image_name(task.lsn, task.epoch, ids.ulid())
        image = put_layer(store, keys, own.directory + name, one, level=2, lsn=task.lsn, start=begin, end=end)
        layers.append(image)
    return layers


def _contents(reader: LayerReader, task: Task) -> Iterable[Version]:
    for piece in task.pieces:
        if task.is_image:
            yield from (version for version in newest(merged(reader, piece)) if version.data is not None)
        else:
            yield from (version for version, _ in merged(reader, piece))
