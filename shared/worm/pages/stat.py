"""Statistics of a page store, and a picture of its layers: pages from left to right, LSNs from the newest down."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.clock import Clock, Ids, SystemClock
from worm.formats import JsonObject
from worm.log import DbKeys, LogReader
from worm.pages.layers import Layers
from worm.pages.manifest import LEVELS, MAIN, Layer, PageBranch, Pages
from worm.pages.root import PagesRoot
from worm.store import Store

INK = ("-", "=", "#")
SAMPLES = 200


@dataclass(frozen=True, slots=True)
class LayerSum:
    """The layers of one kind."""

    kind: str
    layers: int
    versions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BranchStat:
    """`lsn` is applied, `head_lsn` is committed. `read_max` and `read_mean`: how many layers a read of a page's newest
    version may have to ask, by range alone. `write_amplification`: bytes stored per byte of pages."""

    name: str
    parent: str | None
    base: int
    lsn: int
    head_lsn: int
    horizon: int
    kinds: tuple[LayerSum, ...]
    dropped: int
    log_slots: int
    log_bytes: int
    page_bytes: int
    read_max: int
    read_mean: float
    write_amplification: float
    branch: PageBranch = field(repr=False)

    def shape(self) -> JsonObject:
        """The statistics as JSON."""
        return {
            "branch": self.name,
            "parent": self.parent,
            "base": self.base,
            "head": self.head_lsn,
            "lsn": self.lsn,
            "horizon": self.horizon,
            "layers": [
                {"kind": one.kind, "layers": one.layers, "versions": one.versions, "bytes": one.bytes}
                for one in self.kinds
            ],
            "dropped": self.dropped,
            "logSlots": self.log_slots,
            "logBytes": self.log_bytes,
            "pageBytes": self.page_bytes,
            "readMax": self.read_max,
            "readMean": round(self.read_mean, 3),
            "writeAmplification": round(self.write_amplification, 3),
        }

    def picture(self, *, width: int = 60, rows: int = 30) -> list[str]:
        """The layers, one line for each run of them over the same LSNs."""
        return picture(self.branch, width=width, rows=rows)


def branch_stat(
    store: Store, db_id: str, name: str = MAIN, *, clock: Clock | None = None, ids: Ids | None = None
) -> BranchStat:
    """Statistics of a branch. It lists the log, so it is only meant for people."""
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    pages = PagesRoot(store, db_id, clock=clock, ids=ids).read()
    branch = pages.branch(name)
    keys = DbKeys(db_id, branch.id)
    tail = LogReader(store, keys, clock=clock, ids=ids).tail(branch.slot)
    slots = [listed for listed in store.list(keys.log) if keys.slot_of(listed.key) is not None]
    depths = _depths(pages, name)
    written = branch.written
    stored = sum(listed.size for listed in slots) + written.flushed + written.merged + written.images
    return BranchStat(
        name=name,
        parent=branch.parent,
        base=branch.base,
        lsn=branch.lsn,
        head_lsn=branch.base if tail is None else branch.base + tail.last_lsn,
        horizon=branch.horizon,
        kinds=tuple(_sum(branch, level) for level in range(3)),
        dropped=len(branch.dropped),
        log_slots=len(slots),
        log_bytes=sum(listed.size for listed in slots),
        page_bytes=written.applied,
        read_max=max(depths, default=0),
        read_mean=sum(depths) / len(depths) if depths else 0.0,
        write_amplification=stored / written.applied if written.applied else 0.0,
        branch=branch,
    )


def _sum(branch: PageBranch, level: int) -> LayerSum:
    chosen = [layer for layer in branch.layers if layer.level == level]
    return LayerSum(LEVELS[level], len(chosen), sum(one.versions for one in chosen), sum(one.size for one in chosen))


def _depths(pages: Pages, name: str) -> list[int]:
    """The number of layers that cover a page, for pages at which layers begin or end. Filters are ignored."""
    bare = {
        one: branch.model_copy(
            update={"layers": tuple(layer.model_copy(update={"filter": None}) for layer in branch.layers)}
        )
        for one, branch in pages.branches.items()
    }
    layers = Layers(pages.model_copy(update={"branches": bare}))
    edges = _edges(pages.branch(name).layers)
    step = max(1, len(edges) // SAMPLES)
    lsn = pages.branch(name).lsn
    return [len(layers.candidates(name, page, lsn)) for page in edges[::step] if page]


def _edges(layers: Sequence[Layer]) -> list[str]:
    """Where layers begin and end, in the order of pages."""
    found = {layer.low for layer in layers} | {layer.high for layer in layers}
    found |= {layer.start for layer in layers if layer.is_image}
    found |= {layer.end for layer in layers if layer.is_image and layer.end is not None}
    return sorted(found)


def picture(branch: PageBranch, *, width: int = 60, rows: int = 30) -> list[str]:
    """One line for each run of layers over the same LSNs, the newest first: `-` flushed, `=` merged, `#` image."""
    edges = _edges(branch.layers)
    runs: dict[tuple[int, int, int], list[Layer]] = {}
    for layer in branch.layers:
        runs.setdefault((layer.high_lsn, layer.low_lsn, layer.level), []).append(layer)
    lines = []
    for high, low, level in sorted(runs, reverse=True)[:rows]:
        layers = runs[high, low, level]
        size = sum(layer.size for layer in layers)
        span = f"@{high}" if level == 2 else f"{low}..{high}"
        lines.append(f"{span:>21}  {LEVELS[level]:<7} |{_bar(layers, edges, width)}| {len(layers):>4} {size:>13,}")
    if len(runs) > rows:
        lines.append(f"{'…':>21}  {len(runs) - rows} more below")
    return lines


def _bar(layers: Sequence[Layer], edges: Sequence[str], width: int) -> str:
    columns = max(1, len(edges))
    ink = [" "] * width
    for layer in layers:
        if layer.is_image:
            first = bisect_left(edges, layer.start) if layer.start else 0
            last = columns - 1 if layer.end is None else bisect_left(edges, layer.end) - 1
        else:
            first, last = bisect_left(edges, layer.low), bisect_right(edges, layer.high) - 1
        left, right = first * width // columns, (max(first, last) + 1) * width // columns
        for at in range(left, max(right, left + 1)):
            ink[at] = INK[layer.level]
    return "".join(ink)
