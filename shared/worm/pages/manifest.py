"""What the root says about a page store, as values: its settings, branches, their live layers, what is applied, and
what can still be read. It is the member `pages` of `manifest.json`; `root.py` reads and swaps it.

LSNs count through the whole database: a branch's own log counts from 1, and `base`, the LSN of its fork, is added.
Settings are in the root, so that every worker uses the same ones; their names and defaults come from the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from worm.errors import Corrupt, Invalid, NotFound, SnapshotExpired, show
from worm.formats import JsonObject
from worm.log import LogConfig, LogRoot, hints

MIB = 1024 * 1024
MEMBER = "pages"
MAIN = "main"
WINDOW = "`pitr_window_seconds` sets how long the past is kept; a pin keeps one state longer"
MARKS_MAX = 512
LEVELS = ("flushed", "merged", "image")
"""The name of each level."""
Count = Annotated[int, Field(ge=0)]
DAY = 24 * 3600.0


def branch_name(name: str) -> str:
    """The trunk is `main`; the empty string means it, too."""
    given: object = name
    if not isinstance(given, str):
        raise Invalid(f"a branch's name must be a string, not {show(given)}")
    return given or MAIN


class PageConfig(BaseModel):
    """Settings of a page store. They are in its root, so that every worker uses the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flush_threshold_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 64 * MIB
    flush_interval_seconds: Annotated[float, Field(ge=0, le=DAY)] = 5
    delta_layer_target_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 64 * MIB
    image_layer_target_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 128 * MIB
    compaction_cadence_layers: Annotated[int, Field(ge=1, le=10_000)] = 8
    compaction_cadence_minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = 10
    compaction_max_bytes: Annotated[int, Field(ge=1024)] = 512 * MIB
    pitr_window_seconds: Annotated[float, Field(ge=0)] = 7 * DAY
    gc_min_age_seconds: Annotated[float, Field(gt=0)] = 3600
    block_bytes: Annotated[int, Field(ge=512, le=16 * MIB)] = 64 * 1024
    filter_bits_per_page: Annotated[int, Field(ge=4, le=32)] = 16
    manifest_filter_bytes: Annotated[int, Field(ge=0, le=16 * MIB)] = MIB
    page_max_bytes: Annotated[int, Field(ge=1, le=64 * MIB)] = MIB
    cache_tier: Literal["none", "disk"] = "none"
    cache_memory_bytes: Annotated[int, Field(ge=0)] = 64 * MIB
    cache_disk_bytes: Annotated[int, Field(ge=0)] = 1024 * MIB
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _ages_agree(self) -> PageConfig:
        """One run collects both log and layers, so two different ages would be a trap."""
        if self.log.gc_min_age_seconds != self.gc_min_age_seconds:
            object.__setattr__(self, "log", self.log.model_copy(update={"gc_min_age_seconds": self.gc_min_age_seconds}))
        return self


class _Part(BaseModel):
    """A part of the root."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Layer(_Part):
    """A live layer. `path` is below the database's directory. `level`: 0 flushed, 1 merged, 2 image.

    For a delta, `low` to `high` are its pages, and the LSNs are those of its versions. An image gives the content of
    every page from `start` to before `end` (None: to the last one) as of `high_lsn`; a page that it lacks does not
    exist.
    """

    path: str
    level: Annotated[int, Field(ge=0, le=2)]
    low: str
    high: str
    low_lsn: Count
    high_lsn: Count
    size: Count
    index: Count
    sha256: str
    pages: Count
    versions: Count
    raw: Count
    start: str = ""
    end: str | None = None
    filter: str | None = None

    @property
    def is_image(self) -> bool:
        return self.level == 2

    def spans(self, page: str) -> bool:
        """Whether it may have something about the page."""
        if self.level == 2:
            return self.start <= page and (self.end is None or page < self.end)
        return self.low <= page <= self.high

    def overlaps(self, start: str, end: str | None) -> bool:
        """Whether it overlaps the pages from `start` to before `end`."""
        if self.level == 2:
            return (end is None or self.start < end) and (self.end is None or start < self.end)
        return (end is None or self.low < end) and start <= self.high


class Mark(_Part):
    """At this time, by the store's clock, the log was written up to this LSN and slot."""

    ms: int
    lsn: Count
    slot: Count


class Dropped(_Part):
    """A layer that no read needs; it is deleted when it is old enough."""

    path: str
    ms: int


class Pin(_Part):
    """A reader needs this LSN until then (milliseconds of the store's time)."""

    branch: str
    lsn: Count
    until: int


class Written(_Part):
    """Total bytes since the beginning: pages as they were written, and what was stored for them."""

    applied: Count = 0
    flushed: Count = 0
    merged: Count = 0
    images: Count = 0


class PageBranch(_Part):
    """One line of history. `id` is the name of its directory, empty for main. `slot` and `lsn`: it is applied up to
    there. Below `horizon`, only pinned states and forks can be read. `compaction` is the epoch of its newest
    compaction. `closing`: it is being deleted, and nobody may write."""

    id: str = ""
    parent: str | None = None
    base: Count = 0
    slot: Count = 0
    lsn: Count = 0
    horizon: Count = 0
    compaction: Count = 0
    closing: bool = False
    created: str = ""
    layers: tuple[Layer, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    marks: tuple[Mark, ...] = ()
    written: Written = Written()

    def marked(self, mark: Mark) -> tuple[Mark, ...]:
        """The marks with a new one. Times never go backward; if there are too many, every other old one is removed."""
        newest = self.marks[-1].ms if self.marks else 0
        marks = (*self.marks, mark.model_copy(update={"ms": max(mark.ms, newest)}))
        if len(marks) > MARKS_MAX:
            half = MARKS_MAX // 2
            marks = (*marks[:half:2], *marks[half:])
        return marks


class Pages(_Part):
    """The whole page store."""

    format: Literal[1] = 1
    config: PageConfig = PageConfig()
    branches: Mapping[str, PageBranch] = {MAIN: PageBranch()}
    pins: Mapping[str, Pin] = {}

    def branch(self, name: str) -> PageBranch:
        found = self.branches.get(branch_name(name))
        if found is None:
            known = ", ".join(sorted(self.branches))
            raise NotFound(f"there is no branch {name!r}", hint=f"the branches are: {known}")
        return found

    def with_branch(self, name: str, branch: PageBranch) -> Pages:
        return self.model_copy(update={"branches": {**self.branches, name: branch}})

    def children(self, name: str) -> dict[str, PageBranch]:
        return {child: branch for child, branch in self.branches.items() if branch.parent == name}

    def lineage(self, name: str, lsn: int) -> Iterator[tuple[str, PageBranch, int]]:
        """The branch and its ancestors, each with the LSN up to which it counts for a read at `lsn`."""
        current: str | None = name
        while current is not None:
            branch = self.branch(current)
            if lsn > branch.base or branch.parent is None:
                yield current, branch, lsn
            lsn = min(lsn, branch.base)
            current = branch.parent

    def points(self, name: str) -> set[int]:
        """LSNs of a branch that must stay readable below its horizon, too: forks and pins."""
        forks = {branch.base for branch in self.children(name).values()}
        return forks | {pin.lsn for pin in self.pins.values() if pin.branch == name}

    def check_readable(self, name: str, lsn: int) -> None:
        """`SnapshotExpired` if what the read needs may be gone."""
        for current, branch, at in self.lineage(name, lsn):
            if at < branch.horizon and at not in self.points(current):
                raise SnapshotExpired.before_the_kept(f"branch {current!r}: LSN", lsn, branch.horizon, hint=WINDOW)

    def encode(self) -> JsonObject:
        shape: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {**shape, "format": self.format}


def pages_of(root: LogRoot | None, key: str) -> Pages | None:
    """The pages of a root; None if there are none: no database, or one that has only a log."""
    shape = None if root is None else root.members.get(MEMBER)
    if shape is None:
        return None
    try:
        return Pages.model_validate(shape, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Corrupt(f"its pages cannot be read: {where}: {first['msg']}", key=key, hint=hints.BY_HAND) from error


def trimmed(layers: Sequence[Layer], filter_bytes: int) -> tuple[Layer, ...]:
    """The layers with filters for the newest deltas, as many as fit in the root, but not below an image that covers
    them: reads there are reads of the past."""
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
