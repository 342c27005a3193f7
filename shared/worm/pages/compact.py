"""Compaction: many flushed deltas become few merged ones, and those become images.

A run claims a new *compaction epoch* of its branch in the root, makes layers, and publishes them if the epoch is still
its own and every input is still live. If two compactors work on a branch at once, the later one wins, and the other's
layers are never named. Inputs of a merge leave the root in the same step. Deltas below an image stay for reads of the
past, and are collected later (`collect.py`). They are not merged again: some between them may be gone, and a layer must
have all versions of the LSNs that it spans.

- Merging is tiered: the flushed layers are merged with the newest merged ones that are not much larger than all before
  them. So the number of deltas grows with the logarithm of the written bytes, and each byte is rewritten only that many
  times.
- An image is made for a range of pages when its deltas reach a share of its size, or are too many.
- A *plan* is a list of *tasks*, each of which makes one merged delta or one image, split by size. Any process can do a
  task alone, and more than once: its layers have unique names, and nobody sees them before the root names them. A Spark
  job does the same tasks.
- If several processes share the work, a large task is *cut* into ranges of pages of about equal work. Cuts are the
  first pages of blocks, from the indexes of the layers: no page is in two parts, and the same root gives the same parts
  wherever it is planned. A part has at least the bytes of a whole layer; otherwise a cut would leave many small layers.

One run does a limited amount of work; the next one continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from worm.clock import Clock, Deadline, Ids, SystemClock
from worm.errors import Fenced
from worm.log import DbKeys
from worm.pages.cache import BlockCache
from worm.pages.layer_file import PageVersion, build_layers
from worm.pages.layer_name import LayerName
from worm.pages.layers import (
    Candidate,
    LayerGone,
    LayerReader,
    PageRange,
    merged,
    newest,
    page_ranges,
    put_layer,
    within,
)
from worm.pages.manifest import MAIN, Dropped, Layer, PageBranch, PageConfig, Pages, branch_name, trimmed
from worm.pages.root import PagesRoot
from worm.store import Store, in_parallel

INDEX_CACHE = 64 * 1024 * 1024
IMAGE_SHARE, LEAST_SHARE = 0.5, 0.25
"""An image is due if the deltas above it have this share of its bytes (and this share of a whole delta layer, because
small databases would otherwise keep many images of the past), or if there are `DEPTH_MAX` of them."""
DEPTH_MAX = 8
TIER = 2.0


@dataclass(frozen=True, slots=True)
class Task:
    """Make layers from these ranges: one merged delta, or an image at `lsn`. It can be sent to another process."""

    db_id: str
    branch_id: str
    epoch: int
    lsn: int
    low_lsn: int
    is_image: bool
    ranges: Sequence[PageRange]
    config: PageConfig

    @property
    def target_bytes(self) -> int:
        """The target size of a layer that it makes."""
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
        else task.config.filter_bits_per_page,  # after an image, there is no other layer to ask
    )
    layers: list[Layer] = []
    start, end = task.ranges[0].start, task.ranges[-1].end
    for one in built:
        name = LayerName("image" if task.is_image else "merged", task.low_lsn, task.lsn, task.epoch, ids.ulid())
        layer = put_layer(store, own, name, one)
        if task.is_image:
            begin = one.low if layers else start
            layers[-1:] = [before.model_copy(update={"end": begin}) for before in layers[-1:]]
            layer = layer.model_copy(update={"start": begin, "end": end})
        layers.append(layer)
    return layers


def _contents(reader: LayerReader, task: Task) -> Iterable[PageVersion]:
    for span in task.ranges:
        if task.is_image:
            yield from (version for version in newest(merged(reader, span)) if version.data is not None)
        else:
            yield from (version for version, _ in merged(reader, span))


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a run will do to a branch. `inputs` are merged; images do not replace anything."""

    branch: str
    id: str
    epoch: int
    inputs: Sequence[Layer]
    tasks: Sequence[Task]

    @property
    def bytes(self) -> int:
        """The bytes that it reads."""
        found = (one.layer for task in self.tasks for span in task.ranges for one in span.candidates)
        return sum({layer.path: layer.size for layer in found}.values())


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a run did to a branch."""

    branch: str
    merged: int = 0
    deltas: int = 0
    images: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    is_done: bool = True


Runner = Callable[[Sequence[Task]], Iterable[Sequence[Layer]]]
"""Does the tasks of a step, in any order and place. Returns the layers of each."""


class Compactor:
    """Compacts a database. A worker calls `run`. `parts`: the number of tasks that a merge or an image may be cut
    into."""

    def __init__(
        self,
        store: Store,
        db_id: str,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        runner: Runner | None = None,
        max_bytes: int | None = None,
        parts: int = 1,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = PagesRoot(store, db_id, clock=self._clock, ids=self._ids)
        self._runner = runner or self._here
        self._max_bytes = max_bytes
        self._parts = parts

    def run(self, branch: str = MAIN, *, force: bool = False, left: Deadline | None = None) -> Compacted:
        """Do the merges and images that are due (`force`: all that are possible), within the limit of one run."""
        branch = branch_name(branch)
        pages = self.root.read()
        inputs = self._due(pages, branch, self._now(), force)
        report = Compacted(branch)
        if not inputs and not self._image_plan(pages, branch, 0, force)[0].tasks:
            return report
        pages = self._claimed(branch)
        epoch = pages.branch(branch).compaction
        if len(inputs) == 1:
            pages = self._promoted(branch, inputs[0], epoch)
        elif inputs:
            plan = self._merge_plan(pages, branch, epoch, inputs)
            outputs = self._made(plan)
            pages = self._published(plan, outputs)
            report = _sum(report, plan, outputs)
        if left is not None and left() <= 0:
            return replace(report, is_done=False)
        plan, is_whole = self._image_plan(pages, branch, epoch, force)
        if plan.tasks:
            outputs = self._made(plan)
            self._published(plan, outputs)
            report = _sum(report, plan, outputs)
        return report if is_whole and len(self._flushed(pages, branch)) == 0 else replace(report, is_done=False)

    # Planning

    def _flushed(self, pages: Pages, name: str) -> list[Layer]:
        return [layer for layer in pages.branch(name).layers if layer.level == 0]

    def _due(self, pages: Pages, name: str, now: int, force: bool) -> list[Layer]:
        """The layers to merge, oldest first; empty if it is too early."""
        branch, config = pages.branch(name), pages.config
        flushed = sorted(self._flushed(pages, name), key=lambda layer: layer.high_lsn)
        waited = [mark.ms for mark in branch.marks if flushed and mark.lsn >= flushed[0].high_lsn]
        is_old = bool(waited) and now - waited[0] >= config.compaction_cadence_minutes * 60_000
        if not flushed or not (force or is_old or len(flushed) >= config.compaction_cadence_layers):
            return []
        limit = self._max_bytes or config.compaction_max_bytes
        chosen: list[Layer] = []
        size = 0
        for layer in flushed:
            if chosen and size + layer.size > limit and _flush_of(layer) != _flush_of(chosen[-1]):
                break  # never within a flush: layers are in LSN order only between whole flushes
            chosen.append(layer)
            size += layer.size
        floor = max((layer.high_lsn for layer in branch.layers if layer.is_image), default=0)
        older = [layer for layer in branch.layers if layer.level == 1 and layer.low_lsn > floor]
        for layer in sorted(older, key=lambda layer: -layer.high_lsn):
            if layer.size > TIER * size or layer.size + size > min(limit, config.delta_layer_target_bytes):
                break
            chosen.append(layer)
            size += layer.size
        return chosen

    def _merge_plan(self, pages: Pages, name: str, epoch: int, inputs: Sequence[Layer]) -> CompactionPlan:
        branch = pages.branch(name)
        live = {layer.path for layer in branch.layers}
        if any(layer.path not in live for layer in inputs):
            raise _overtaken(self.root.keys)
        low, high = min(one.low_lsn for one in inputs), max(one.high_lsn for one in inputs)
        whole = PageRange("", None, [Candidate(layer, high) for layer in inputs])
        task = Task(self.root.keys.db_id, branch.id, epoch, high, low, False, [whole], pages.config)
        return CompactionPlan(name, branch.id, epoch, inputs, [task])

    def _image_plan(self, pages: Pages, name: str, epoch: int, force: bool) -> tuple[CompactionPlan, bool]:
        """The images that are due, at the LSN up to which everything flushed is merged, and whether these are all."""
        branch, config = pages.branch(name), pages.config
        flushed = self._flushed(pages, name)
        deltas = [layer for layer in branch.layers if layer.level == 1]
        first = min((layer.low_lsn for layer in flushed), default=None)
        lsn = max((one.high_lsn for one in deltas if first is None or one.high_lsn < first), default=0)
        own = {layer.path for layer in branch.layers}
        tasks: list[Task] = []
        size, limit = 0, self._max_bytes or config.compaction_max_bytes
        for group in _groups(page_ranges(pages, name, lsn), config.image_layer_target_bytes) if lsn else []:
            if not any(_is_due(span, own, config, force) for span in group):
                continue
            cost = sum(one.layer.size for span in group for one in span.candidates)
            if tasks and size + cost > limit:
                return CompactionPlan(name, branch.id, epoch, (), tasks), False
            size += cost
            tasks.append(Task(self.root.keys.db_id, branch.id, epoch, lsn, lsn, True, group, config))
        return CompactionPlan(name, branch.id, epoch, (), tasks), True

    # Doing

    def _claimed(self, name: str) -> Pages:
        """Become the newest compaction of the branch; those of other branches continue. A claim that is repeated after
        an unknown answer only skips a number."""

        def next_one(pages: Pages) -> Pages:
            branch = pages.branch(name)
            return pages.with_branch(name, branch.model_copy(update={"compaction": branch.compaction + 1}))

        return self.root.change(next_one)

    def _promoted(self, name: str, only: Layer, epoch: int) -> Pages:
        """A single flushed layer is merged as it is."""

        def raised(pages: Pages) -> Pages | None:
            branch = pages.branches.get(name)
            if branch is None or branch.compaction != epoch:
                raise _overtaken(self.root.keys)
            layers = [
                layer.model_copy(update={"level": 1}) if layer.path == only.path else layer for layer in branch.layers
            ]
            return pages.with_branch(name, branch.model_copy(update={"layers": tuple(layers)}))

        return self.root.change(raised)

    def _made(self, plan: CompactionPlan) -> list[Layer]:
        try:
            tasks = [part for task in plan.tasks for part in self._cut(task)]
            return [layer for layers in self._runner(tasks) for layer in layers]
        except LayerGone as gone:
            gone.check(self.root.read())
            raise _overtaken(self.root.keys) from gone

    def _cut(self, task: Task) -> list[Task]:
        reader = LayerReader(self._store, self.root.keys, BlockCache(INDEX_CACHE))
        return [replace(task, ranges=part) for part in split(reader, task.ranges, self._parts, task.target_bytes)]

    def _here(self, tasks: Sequence[Task]) -> Iterable[Sequence[Layer]]:
        return [do_task(self._store, task, self._ids) for task in tasks]

    def _now(self) -> int:
        """Milliseconds of the store's time."""
        return int(self.root.store_time().timestamp() * 1000)

    def _published(self, plan: CompactionPlan, outputs: Sequence[Layer]) -> Pages:
        now = self._now() if plan.inputs else 0  # the time now, not at the start: the readers' grace period begins here
        made, gone = {layer.path for layer in outputs}, {layer.path for layer in plan.inputs}

        def flipped(pages: Pages) -> Pages | None:
            branch = pages.branches.get(plan.branch)
            if branch is None or branch.id != plan.id:
                raise _overtaken(self.root.keys)
            live = {layer.path for layer in branch.layers}
            if made & live:
                return None  # it was already stored, and the answer was lost
            if branch.compaction != plan.epoch or not gone <= live:
                raise _overtaken(self.root.keys)
            return pages.with_branch(plan.branch, _flipped(branch, outputs, gone, now, pages.config))

        return self.root.change(flipped)


def _flush_of(layer: Layer) -> str:
    """The layers of one flush differ only in the last part of their names."""
    return layer.path.rpartition("-")[0]


def _groups(found: Sequence[PageRange], target_bytes: int) -> list[list[PageRange]]:
    """Adjacent pieces that are small together become one image again."""
    groups: list[list[PageRange]] = []
    size = 0
    for span in found:
        own = sum(one.layer.size for one in span.candidates if one.layer.is_image)
        if groups and size + own <= target_bytes / 2:
            groups[-1].append(span)
            size += own
        else:
            groups.append([span])
            size = own
    return groups


def _is_due(span: PageRange, own: set[str], config: PageConfig, force: bool) -> bool:
    """A branch makes images of what it has written, not of what it shares."""
    deltas = [one.layer for one in span.candidates if not one.layer.is_image and one.layer.path in own]
    images = sum(one.layer.size for one in span.candidates if one.layer.is_image)
    if not deltas:
        return False
    enough = max(IMAGE_SHARE * images, config.delta_layer_target_bytes * LEAST_SHARE)
    return force or len(deltas) >= DEPTH_MAX or sum(delta.size for delta in deltas) >= enough


def _flipped(branch: PageBranch, outputs: Sequence[Layer], gone: set[str], now: int, config: PageConfig) -> PageBranch:
    layers = (*(layer for layer in branch.layers if layer.path not in gone), *outputs)
    size, images = sum(one.size for one in outputs), sum(one.size for one in outputs if one.is_image)
    written = branch.written
    return branch.model_copy(
        update={
            "layers": trimmed(layers, config.manifest_filter_bytes),
            "dropped": (*branch.dropped, *(Dropped(path=path, ms=now) for path in sorted(gone))),
            "written": written.model_copy(
                update={"merged": written.merged + size - images, "images": written.images + images}
            ),
        }
    )


def _overtaken(keys: DbKeys) -> Fenced:
    return Fenced(
        "another compaction was faster; the result of this one is not used",
        key=keys.root,
        hint="you need not do anything",
    )


def _sum(report: Compacted, plan: CompactionPlan, outputs: Sequence[Layer]) -> Compacted:
    images = sum(layer.is_image for layer in outputs)
    return replace(
        report,
        merged=report.merged + len(plan.inputs),
        deltas=report.deltas + len(outputs) - images,
        images=report.images + images,
        bytes_read=report.bytes_read + plan.bytes,
        bytes_written=report.bytes_written + sum(layer.size for layer in outputs),
    )


def split(reader: LayerReader, ranges: Sequence[PageRange], parts: int, least_bytes: int) -> list[list[PageRange]]:
    """The adjacent ranges, divided into at most this many parts. One request for each layer, if it may be cut."""
    whole = [list(ranges)]
    layers = {one.layer.path: one.layer for span in ranges for one in span.candidates}
    if min(parts, sum(layer.size for layer in layers.values()) // least_bytes) < 2:
        return whole
    in_parallel(reader.index, layers.values())
    weights = Counter[str]()
    for span in ranges:
        for one in span.candidates:
            for ref in reader.index(one.layer).blocks_between(span.start, span.end):
                weights[max(ref.page, span.start)] += ref.length
    parts = min(parts, weights.total() // least_bytes)
    if parts < 2:
        return whole
    bounds = [ranges[0].start, *_cuts(weights, parts), ranges[-1].end]
    return [list(_between(ranges, str(start), end)) for start, end in pairwise(bounds)]


def _cuts(weights: Counter[str], parts: int) -> Iterator[str]:
    """The first pages of all parts except the first one."""
    before, made, total = 0, 1, weights.total()
    for page in sorted(weights):
        if before * parts >= made * total:
            yield page
            made = before * parts // total + 1
        before += weights[page]


def _between(ranges: Sequence[PageRange], start: str, end: str | None) -> Iterator[PageRange]:
    for span in ranges:
        inside = within((span.start, span.end), (start, end))
        if inside is not None:
            yield PageRange(*inside, [one for one in span.candidates if one.layer.overlaps(*inside)])
