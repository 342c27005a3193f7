"""Ranges of ids: how several processes divide the listing and reading of one collection.

Ids are compared as text, keys by bytes. The two orders differ in two things.
- Ids that need an escape (`schema/fields.py`) are in their own block, where all keys start with `%`. Inside and outside
  the block, segments have the order of their ids. So a range is one scan of each.
- The characters before `/`, such as `-` and `.`, sort before the `/` that ends an id in a key: `a-b/…` comes before
  `a/…` although `a` is before `a-b`. So a scan begins at the range's start and ends at its end. It skips ids that only
  their keys put in between, and looks up the few ids whose keys come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

from worm.codec.shapes import OBJECT, TEXT, check_shape, list_of, record
from worm.codec.strict_json import JsonObject, loads_own
from worm.collections.layout import StorageResolver
from worm.errors import Corrupt, Invalid
from worm.schema import ModelDef
from worm.schema.fields import escape_id, id_segment
from worm.store.base import Store
from worm.values import dataclass

PROBES_MAX = 400
PROBERS = 8
_AFTER_SLASH = "0"
# What else is in a root besides the ids that are their own segments: escaped ids, and system keys.
_ESCAPED = ("%", "&")
_SYSTEM = (".", "/")
_NOT_PLAIN = re.compile(r"[\x00-\x1f%/]|^\.")
_CONTROLS = "".join(map(chr, range(0x20)))  # never sent to a store, and nothing sorts between them and a space
_CHARACTER_MAX = 0x10FFFF
_HEX_DIGITS = 4
_TABLE = record(
    "a file of a table",
    {},
    {
        "directory": record("the name of a directory", {"file": TEXT}),
        "partitions": list_of(record("a partition", {}, {"from": TEXT})),
        "entities": OBJECT,
        "heads": OBJECT,
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


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids from `start` to before `end`. An empty start or an end of None is open."""

    start: str = ""
    end: str | None = None

    def __contains__(self, entity_id: str) -> bool:
        return self.start <= entity_id and (self.end is None or entity_id < self.end)

    @property
    def is_open(self) -> bool:
        return not self.start and self.end is None

    def scans(self, root: str, *, beside_system_keys: bool = False) -> list[Scan]:
        """Which keys `<root><segment of the id>/…` to list. They may include ids outside the range: check with `in`.
        Each key comes once.

        `beside_system_keys`: the root also has keys that start with a dot, which are skipped.
        """
        holes = [_SYSTEM] if beside_system_keys else []
        if self.is_open:
            return _around(Scan(root), holes)
        late = [Scan(f"{root}{id_segment(entity_id)}/") for entity_id in self._late_ids()]
        return [*_around(self._plain(root), [_ESCAPED, *holes]), self._escaped(root), *late]

    def _plain(self, root: str) -> Scan:
        """The ids that are their own segments. Text after a character that they cannot have does not matter."""
        before = None if self.end is None else root + _plain_start(self.end)
        return Scan(root, root + _plain_start(self.start).rstrip(_CONTROLS) if self.start else None, before)

    def _escaped(self, root: str) -> Scan:
        return Scan(
            root + _ESCAPED[0],
            root + escape_id(self.start) if self.start else None,
            None if self.end is None else root + escape_id(self.end),
        )

    def _late_ids(self) -> list[str]:
        """Ids of the range whose keys come after its end: the beginnings of its end, up to a character that sorts,
        plain or escaped, not after a slash."""
        end = self.end or ""
        cuts = (at for at in range(1, len(end)) if end[at] < _AFTER_SLASH)
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


def ranges_between(starts: Sequence[str]) -> list[IdRange]:
    """All ids before the first start, and one range per start, up to the next one."""
    ordered = ["", *sorted({start for start in starts if start})]
    return [IdRange(start, end) for start, end in zip(ordered, [*ordered[1:], None], strict=True)]


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
    """About `wanted` ranges with about the same number of documents each, which together cover all ids. It needs few
    requests, however large the collection is: the root of the manifest or of the heads if there is one, otherwise some
    listings of one key."""
    if collection.definition.is_singleton or wanted < 2:
        return [IdRange()]
    known = max(_known_starts(collection), key=len)
    if len(known) < wanted:
        is_uuid = collection.definition.id_type == "uuid"
        known = max(known, _even_hex(wanted) if is_uuid else _probed(collection, wanted), key=len)
    return ranges_between(_thinned(known, wanted)[1:])


def _even_hex(wanted: int) -> list[str]:
    """UUIDs are evenly distributed."""
    return [f"{at * 16**_HEX_DIGITS // wanted:0{_HEX_DIGITS}x}" for at in range(wanted)]


def _thinned(starts: Sequence[str], wanted: int) -> list[str]:
    if len(starts) <= wanted:
        return list(starts)
    return [starts[at * len(starts) // wanted] for at in range(wanted)]


# Hints from tables


def _known_starts(collection: Planned) -> list[list[str]]:
    resolver, name = collection.resolver, collection.name
    return [
        _starts_in(collection.store, resolver.manifest_key(name), resolver.manifest_dir(name)),
        _starts_in(collection.store, resolver.heads_key(name), resolver.heads_dir(name)),
    ]


def _starts_in(store: Store, key: str, directory: str) -> list[str]:
    """The first ids of the partitions of a partitioned table, or all ids of an unpartitioned one (see docs/formats.md).
    None if the table is damaged: a plan only needs a hint."""
    try:
        shape = _shape(store, key)
        if "directory" in shape:
            shape = _shape(store, directory + cast("dict[str, str]", shape["directory"])["file"])
        elif shape.get("partitioned") is not True:
            return sorted(cast(JsonObject, shape.get("entities", shape.get("heads", {}))))
    except (Corrupt, Invalid):  # also a file whose name is not a valid key
        return []
    return [one.get("from", "") for one in cast("list[dict[str, str]]", shape.get("partitions", []))]


def _shape(store: Store, key: str) -> JsonObject:
    found = store.get(key)
    shape = {} if found is None else loads_own(found.body, key=key)
    check_shape(shape, _TABLE, key)
    return shape


# Probing


def _probed(collection: Planned, wanted: int) -> list[str]:
    """Prefixes of existing ids, extended until there are enough of them."""
    prober = _Prober(collection.store, collection.resolver.collection_path(collection.name))
    found = [prober.shared()]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(PROBERS, "worm-probe") as pool:
        while len(found) < wanted and prober.probes < PROBES_MAX:
            longer = [one for several in pool.map(prober.longer, found) for one in several]
            if longer == found:
                break
            found = longer
    return found


class _Prober:
    """Asks the store for one key at a time."""

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self._root = root
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

    def longer(self, prefix: str) -> list[str]:
        """The prefixes of ids that are one character longer, and the prefix itself if it is an id, too. Escaped ids are
        left out: they are few, and a plan only needs a hint."""
        return sorted(self._longer(prefix))

    def _longer(self, prefix: str) -> Iterator[str]:
        after = prefix
        while self.probes < PROBES_MAX:
            found = self._first_after(after, prefix)
            if found is None:
                return
            character = found[len(prefix)]
            if character == "/":
                yield prefix
            elif prefix or character not in (_ESCAPED[0], _SYSTEM[0]):
                yield prefix + character
            following = _next_start(prefix + character)
            if following == after:
                return
            after = following
        if after == prefix:
            yield prefix

    def _first_after(self, after: str, prefix: str = "") -> str | None:
        """The first key with the prefix that comes after this text, without the root."""
        self.probes += 1
        start = self._root + after if after else None
        listed = next(self._store.list(self._root + prefix, start_after=start, limit=1), None)
        return None if listed is None else listed.key.removeprefix(self._root)


def _next_start(text: str) -> str:
    """The first text after all that begin with this one: its last character's successor, if UTF-8 has one."""
    last = ord(text[-1])
    return text[:-1] + ("\ue000" if last == 0xD7FF else chr(min(last + 1, _CHARACTER_MAX)))
