"""Ranges of ids: how several processes divide the listing and reading of one collection.

Ids are compared as text, keys by bytes. The two orders differ in two things.
- Ids that need an escape (`formats/fields.py`) are in their own block, where all keys start with `%`. Inside and
  outside the block, segments have the order of their ids. So a range is one scan of each.
- The characters before `/`, such as `-` and `.`, sort before the `/` that ends an id in a key: `a-b/…` comes before
  `a/…` although `a` is before `a-b`. So a scan begins at the range's start and ends at its end. It skips ids that only
  their keys put in between, and looks up the few ids whose keys come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Protocol, cast

from worm.collections.layout import StorageResolver
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, ModelDef, encode_id, escape_id, loads_own, shapes, unescape_id
from worm.store import Store
from worm.values import dataclass

IDS_PER_RANGE_MAX = 100_000
"""No planned range has many more ids than this, as far as a table knows them."""
PROBES_MAX = 400
PROBERS = 8
AFTER_SLASH = "0"
# What else is in a root besides the ids that are their own segments: escaped ids, and system keys.
_ESCAPED = ("%", "&")
_SYSTEM = (".", "/")
_NOT_PLAIN = re.compile(r"[\x00-\x1f%/]|^\.")
_CONTROLS = "".join(map(chr, range(0x20)))  # never sent to a store, and nothing sorts between them and a space
_CHARACTER_MAX = 0x10FFFF
_ESCAPES_MAX = 12
"""The most characters that escapes make of one."""
_HEX_DIGITS = 8
_HEAD_BYTES = 110
"""About the bytes of one head, without its id."""
_TABLE = shapes.record(
    "a file of a table",
    {},
    {
        "directory": shapes.record("the name of a directory", {"file": shapes.TEXT}),
        "partitions": shapes.list_of(shapes.record("a partition", {}, {"from": shapes.TEXT})),
        "deltas": shapes.list_of(shapes.record("a delta", {}, {"count": shapes.WHOLE})),
        "count": shapes.WHOLE,
        "sizeBytes": shapes.WHOLE,
        "entities": shapes.OBJECT,
        "heads": shapes.OBJECT,
    },
)


@dataclass(frozen=True, slots=True)
class Scan:
    """A part of a listing: keys under the prefix, after `after` and before `before`."""

    prefix: str
    after: str | None = None
    before: str | None = None

    def is_over(self, key: str) -> bool:
        return self.before is not None and key >= self.before

    def after_folder(self, folder: str) -> Scan:
        """What is left of the scan after all keys of this folder."""
        return Scan(self.prefix, folder + AFTER_SLASH, self.before)


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids from `start` to before `end`. An empty start or an end of None is open."""

    start: str = ""
    end: str | None = None

    def __contains__(self, entity_id: str) -> bool:
        return self.start <= entity_id and (self.end is None or entity_id < self.end)

    @classmethod
    def between(cls, starts: Sequence[str]) -> list[IdRange]:
        """All ids before the first start, and one range per start, up to the next one."""
        ordered = ["", *sorted({start for start in starts if start})]
        return [cls(start, end) for start, end in zip(ordered, [*ordered[1:], None], strict=True)]

    @staticmethod
    def least_for(ids: int) -> int:
        """How many ranges a plan has at least for so many ids."""
        return -(-ids // IDS_PER_RANGE_MAX)

    @staticmethod
    def punctual(entity_id: str) -> str:
        """The beginning of an id up to its first character that sorts before a slash. All plain ids before it have keys
        before those of the id, and a range that ends there has no late ids."""
        cut = next((at for at in range(1, len(entity_id)) if entity_id[at] < AFTER_SLASH), len(entity_id))
        return entity_id[:cut]

    @property
    def is_open(self) -> bool:
        return not self.start and self.end is None

    def up_to(self, end: str | None) -> IdRange:
        """The part of the range before this id; None: all of it."""
        is_longer = end is not None and (self.end is None or end < self.end)
        return IdRange(self.start, end) if is_longer else self

    def scans(self, root: str, *, beside_system_keys: bool = False) -> list[Scan]:
        """Which keys `<root><segment of the id>/…` to list. They may include ids outside the range: check with `in`.
        Each key comes once.

        `beside_system_keys`: the root also has keys that start with a dot, which are skipped.
        """
        if self.is_open:
            return _around(Scan(root), [_SYSTEM] if beside_system_keys else [])
        plain = self.plain_scans(root, beside_system_keys=beside_system_keys)
        return [*plain, self.escaped_scan(root), *self.late_scans(root)]

    def plain_scans(self, root: str, *, beside_system_keys: bool = False) -> list[Scan]:
        """The ids that are their own segments, in ascending order, except those of `late_scans`."""
        return _around(self.plain(root), [_ESCAPED, _SYSTEM] if beside_system_keys else [_ESCAPED])

    def late_scans(self, root: str) -> list[Scan]:
        """The ids whose keys come after the end of their block, one each."""
        return [Scan(f"{root}{encode_id(entity_id)}/") for entity_id in self._late_ids()]

    def plain(self, root: str) -> Scan:
        """The ids that are their own segments. Text after a character that they cannot have does not matter."""
        before = None if self.end is None else root + _plain_start(self.end)
        return Scan(root, root + _plain_start(self.start).rstrip(_CONTROLS) if self.start else None, before)

    def escaped_scan(self, root: str) -> Scan:
        """The ids with an escape, in ascending order, except those of `late_scans`."""
        return Scan(
            root + _ESCAPED[0],
            root + escape_id(self.start) if self.start else None,
            None if self.end is None else root + escape_id(self.end),
        )

    def _late_ids(self) -> list[str]:
        """Ids of the range whose keys come after its end: the beginnings of its end, up to a character that sorts,
        plain or escaped, not after a slash."""
        end = self.end or ""
        cuts = (at for at in range(1, len(end)) if end[at] < AFTER_SLASH)
        return [end[:at] for at in cuts if end[:at] in self]


def _plain_start(text: str) -> str:
    """As much of the text as is needed to decide whether an id without an escape is before it."""
    found = _NOT_PLAIN.search(text)
    return text if found is None else text[: found.end()]


def _around(scan: Scan, holes: Sequence[tuple[str, str]]) -> list[Scan]:
    """The scan without the holes. Each hole starts at one character and ends before another; they are in ascending
    order."""
    pieces, root, after = list[Scan](), scan.prefix, scan.after
    for low, high in holes:
        if scan.is_over(root + low):
            break
        if (after or "") < root + low:
            pieces.append(Scan(root, after, root + low))
        after = max(after or "", root + high)
    return [*pieces, Scan(root, after, scan.before)]


class Planned(Protocol):
    """The collection, as far as planning needs it."""

    @property
    def store(self) -> Store: ...
    @property
    def resolver(self) -> StorageResolver: ...
    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> ModelDef: ...


def plan_ranges(collection: Planned, wanted: int) -> list[IdRange]:
    """About `wanted` ranges with about the same number of documents each, which together cover all ids; more if a table
    knows more ids than that many ranges may have. It needs few requests, however large the collection is: the roots of
    manifest and heads if there are any, otherwise some listings of one key."""
    if collection.definition.is_singleton or wanted < 2:
        return [IdRange()]
    known = known_ids(collection)
    wanted = max(wanted, IdRange.least_for(known.count))
    starts = known.starts
    if len(starts) < wanted:
        starts = max(starts, _hints(collection, wanted), key=len)
    return IdRange.between(thinned(starts, wanted)[1:])


def probed_ranges(collection: Planned, wanted: int) -> list[IdRange]:
    """The same without a table: from some listings of one key, or none if the ids are UUIDs."""
    if collection.definition.is_singleton or wanted < 2:
        return [IdRange()]
    return IdRange.between(thinned(_hints(collection, wanted), wanted)[1:])


def split_range(store: Store, root: str, within: IdRange, wanted: int) -> list[IdRange]:
    """At most about `wanted` ranges that together are this one, divided where ids below the root begin."""
    plain_ids, escaped_ids = within.plain(root), within.escaped_scan(root)
    plain = _longer(_Prober(store, root, plain_ids), [_common_start(within)], wanted, within)
    escaped = _longer(_EscapedProber(store, root, escaped_ids), [_escaped_start(within)], wanted, within)
    found = {one for one in (*plain, *map(_unescaped_start, escaped)) if within.start < one and one in within}
    starts = [within.start, *thinned(sorted(found), wanted - 1)]
    return [IdRange(start, end) for start, end in zip(starts, [*starts[1:], within.end], strict=True)]


def _hints(collection: Planned, wanted: int) -> list[str]:
    return _even_hex(wanted) if collection.definition.id_type == "uuid" else _probed(collection, wanted)


def _even_hex(wanted: int) -> list[str]:
    """UUIDs are evenly distributed."""
    return [f"{at * 16**_HEX_DIGITS // wanted:0{_HEX_DIGITS}x}" for at in range(wanted)]


def thinned(starts: Sequence[str], wanted: int) -> list[str]:
    """At most this many of them, evenly chosen."""
    if len(starts) <= wanted:
        return list(starts)
    return [starts[at * len(starts) // wanted] for at in range(wanted)]


# Hints from tables


@dataclass(frozen=True, slots=True)
class KnownIds:
    """What a table knows: about how many ids there are, and ids that divide them into about equal parts (of one id
    each, if the table is one file)."""

    count: int = 0
    starts: Sequence[str] = ()


def known_ids(collection: Planned) -> KnownIds:
    """The larger count and the finer parts of manifest and heads; nothing if there is no table. Only a hint: a table
    may be far behind its documents."""
    resolver, name = collection.resolver, collection.name
    found = [
        _known_in(collection.store, resolver.manifest_key(name), resolver.manifest_dir(name)),
        _known_in(collection.store, resolver.heads_key(name), resolver.heads_dir(name), head_bytes=_HEAD_BYTES),
    ]
    return KnownIds(max(one.count for one in found), max((one.starts for one in found), key=len))


def _known_in(store: Store, key: str, directory: str, head_bytes: int = 0) -> KnownIds:
    """The first ids of the partitions of a partitioned table, or all ids of an unpartitioned one (see docs/formats.md).
    Nothing if the table is damaged: a plan only needs a hint. `head_bytes`: for heads, whose size tells about how many
    deleted entities they also have; their count does not."""
    try:
        shape = root = _shape(store, key)
        if "directory" in shape:
            shape = _shape(store, directory + cast("dict[str, str]", shape["directory"])["file"])
        elif shape.get("partitioned") is not True:
            ids = sorted(cast(JsonObject, shape.get("entities", shape.get("heads", {}))))
            return KnownIds(len(ids), ids)
    except (Corrupt, Invalid):  # also a file whose name is not a valid key
        return KnownIds()
    deltas = cast("list[dict[str, int]]", root.get("deltas", []))
    starts = [one.get("from", "") for one in cast("list[dict[str, str]]", shape.get("partitions", []))]
    count = cast(int, root.get("count", 0)) + sum(one.get("count", 0) for one in deltas)
    if head_bytes:
        of_one = head_bytes + max(map(len, starts), default=0)
        count = max(count, cast(int, root.get("sizeBytes", 0)) // of_one)
    return KnownIds(count, starts)


def _shape(store: Store, key: str) -> JsonObject:
    found = store.get(key)
    shape = {} if found is None else loads_own(found.body, key=key)
    shapes.check(shape, _TABLE, key)
    return shape


# Probing


def _probed(collection: Planned, wanted: int) -> list[str]:
    """Prefixes of existing ids."""
    prober = _Prober(collection.store, collection.resolver.collection_path(collection.name))
    return _longer(prober, [prober.shared()], wanted)


def _longer(prober: _Prober, found: list[str], wanted: int, within: IdRange | None = None) -> list[str]:
    """The prefixes (of a range), extended until there are enough of them."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(PROBERS, "worm-probe") as pool:
        while len(found) < wanted and prober.probes < PROBES_MAX:
            longer = [one for several in pool.map(prober.longer, found) for one in several]
            longer = [one for one in longer if within is None or _may_be_in(within, prober.start_of(one))]
            if longer == found:
                break
            found = longer
    return found


def _common_start(within: IdRange) -> str:
    """What all ids of the range begin with, up to a character that keys have only in an escape."""
    shared = _shared_start(within)
    found = _NOT_PLAIN.search(shared)
    return shared if found is None else shared[: found.start()]


def _escaped_start(within: IdRange) -> str:
    """What the segments of all ids of the range begin with that need an escape."""
    shared = _shared_start(within)
    return escape_id(shared) if shared else _ESCAPED[0]


def _shared_start(within: IdRange) -> str:
    pairs = zip(within.start, within.end or "", strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _unescaped_start(segment: str) -> str:
    """What an id begins with whose segment begins like this: the last character may have only a part of its escapes."""
    ends = range(len(segment), max(-1, len(segment) - _ESCAPES_MAX), -1)
    return next(filter(None, (unescape_id(segment[:end]) for end in ends)), "")


def _may_be_in(within: IdRange, prefix: str) -> bool:
    """Whether ids with this prefix can be in the range."""
    return (within.end is None or prefix < within.end) and (prefix >= within.start or within.start.startswith(prefix))


class _Prober:
    """Asks the store for one key at a time. It leaves escaped ids out. `scan`: the keys of the ids that matter; there
    may be very many different characters before them and after them."""

    def __init__(self, store: Store, root: str, scan: Scan | None = None) -> None:
        self._store = store
        self._root = root
        self._scan = scan or Scan(root)
        self._start = (self._scan.after or "").removeprefix(root)
        self._asked: set[str] = set()
        self.probes = 0

    def shared(self) -> str:
        """The common prefix of all ids, found by bisecting the first id: no id of the collection comes before it."""
        first = self._first_after("")
        for start, beyond in (_ESCAPED, _SYSTEM):
            if first is not None and first.startswith(start):
                first = self._first_after(beyond)
        text = (first or "").partition("/")[0]
        low, high = 0, len(text)
        while low < high:
            half = (low + high + 1) // 2
            is_shared = self._first_after(_next_start(text[:half])) is None
            low, high = (half, high) if is_shared else (low, half - 1)
        return text[:low]

    def start_of(self, prefix: str) -> str:
        """What an id begins with whose segment begins with this prefix."""
        return prefix

    def longer(self, prefix: str) -> list[str]:
        """The prefixes of segments that are one character longer, and the prefix itself if it is one, too: asked for
        that again, there is nothing more to find."""
        if prefix in self._asked:
            return [prefix]
        self._asked.add(prefix)
        return sorted(self._longer(prefix))

    def _longer(self, prefix: str) -> Iterator[str]:
        first = after = self._start[: len(prefix) + 1] if self._start.startswith(prefix) else prefix
        while self.probes < PROBES_MAX:
            found = self._first_after(after, prefix)
            if found is None:
                return
            character = found[len(prefix)]
            if self._scan.is_over(self._root + prefix + character):
                return
            if character == "/":
                yield prefix
            elif prefix or character not in (_ESCAPED[0], _SYSTEM[0]):
                yield prefix + character
            following = _next_start(prefix + character)
            if following == after:
                return
            after = following
        if after == first:
            yield prefix

    def _first_after(self, after: str, prefix: str = "") -> str | None:
        """The first key with the prefix that comes after this text, without the root."""
        self.probes += 1
        start = self._root + after if after else None
        listed = next(self._store.list(self._root + prefix, start_after=start, limit=1), None)
        return None if listed is None else listed.key.removeprefix(self._root)


class _EscapedProber(_Prober):
    """The same for the ids that need an escape."""

    def start_of(self, prefix: str) -> str:
        return _unescaped_start(prefix)


def _next_start(text: str) -> str:
    """The first text after all that begin with this one: its last character's successor, if UTF-8 has one."""
    last = ord(text[-1])
    return text[:-1] + ("\ue000" if last == 0xD7FF else chr(min(last + 1, _CHARACTER_MAX)))
