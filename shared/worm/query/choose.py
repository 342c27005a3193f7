"""Choosing the strategy of a query, and finding its candidates.

Rules of choice, in this order
1. An index look-up when the manifest alone cannot answer, or when the filter names at most `PROMISED` ids or values of
   a unique index, or when the manifest is spread over files that are not read yet. It is left when it names more
   documents than a scan has GETs to make; or, where the manifest cannot answer alone, more than `FEW` and the manifest
   may name fewer.
2. A manifest scan when the manifest has all fields.
3. The manifest and the documents that it names, when it has the fields of the filter (or of parts that must all hold).
4. A full scan.
Where a manifest or an index is missing, damaged or stale the next one answers, and the answer is the same.

What the session wrote is in every answer: over the rows of the manifest, and among the candidates of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from worm.codec.strict_json import JsonValue
from worm.collections.changes import Row, project
from worm.collections.entries import Document
from worm.errors import Corrupt, Invalid
from worm.query.fetch import as_row
from worm.query.plan import FEW, PROMISED, UNUSABLE, Lookup, Needs, Size, Strategy, scan_weight, to_read
from worm.schema import IndexDef
from worm.tables.columns import Columns
from worm.tables.state import TableState
from worm.tables.table import Table

INDEX_GETS = 2  # of an index in parts, beside what a scan reads too: the root again, and one part
COVERED = "manifest has all needed fields"
REBUILD = "build_manifest() or `worm table rebuild` makes it anew"


class OwnWrite(Protocol):
    """A write of the session. `document` None: deleted."""

    @property
    def document(self) -> Document | None: ...
    def is_in(self, row: Row | None) -> bool: ...


class OwnWrites(Protocol):
    """What the session wrote."""

    def own_writes(self, known: TableState) -> Mapping[str, Document | None]:
        """What the table does not know yet; None for a deletion."""
        ...

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        """All that it wrote lately, whether the table knows or not."""
        ...

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of those among them that have one of the values in the indexed field."""
        ...


class NoWrites:
    """A reader that wrote nothing."""

    def own_writes(self, known: TableState) -> Mapping[str, Document | None]:
        return {}

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        return {}

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        return set()


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy with its candidates: rows of the manifest, or ids (None: not looked up, or all there are)."""

    strategy: Strategy
    reason: str
    columns: Columns | None = None
    ids: list[str] | None = None


class Chooser:
    """The choice for one request. Asks for the manifest's root once at most, and only where the choice needs it."""

    def __init__(self, table: Table, own: OwnWrites, needs: Needs) -> None:
        self._table = table
        self._own = own
        self._needs = needs
        self._asked = False
        self._state: TableState | None = None

    @property
    def size(self) -> Size | None:
        """What is known of the table without asking more."""
        return Size.known(self._table, self._state)

    @property
    def state(self) -> TableState | None:
        """The table, asked for once."""
        if not self._asked:
            self._asked = True
            self._state = self._table.state(self._needs.scanned)
        return self._state

    def choose(self, *, look_up: bool = True) -> Choice:
        """`look_up` False: nothing but the root is read, so there may be no candidates."""
        forced = self._needs.request.strategy
        if forced is not None:
            return self._forced(forced, look_up)
        return self._by_index(look_up) or self._by_manifest(look_up) or Choice("full_scan", self._why_all())

    def choose_stream(self, few: int) -> Choice:
        """For a reader that holds a part of the rows at a time: a look-up where the filter itself names no more than
        `few` ids, or where the manifest cannot answer; else the manifest; else all documents."""
        needs, lookup = self._needs, self._needs.lookup
        if lookup is not None and (needs.lacks is not None or is_promising(lookup, few)):
            ids = self._looked_up(lookup)
            if ids is not None:
                return Choice("index_lookup", why_looked_up(lookup), ids=ids)
        if needs.lacks is None and self.state is not None:
            return Choice("manifest_scan", COVERED)
        return Choice("full_scan", needs.lacks or UNUSABLE)

    def _forced(self, strategy: Strategy, look_up: bool) -> Choice:
        reason = "the caller asked for it"
        if strategy == "full_scan":
            return Choice(strategy, reason)
        if strategy == "index_lookup":
            return self._forced_index(reason, look_up)
        needs = self._needs
        obstacle = needs.lacks if strategy == "manifest_scan" else None
        if obstacle is None and needs.narrowing is None:
            obstacle = needs.lacks
        if obstacle is not None:
            raise Invalid(f"{strategy} is not possible: {obstacle}", path="strategy")
        state = self._loaded(look_up)
        if state is None:
            raise Invalid(f"{strategy} is not possible: {UNUSABLE}", path="strategy", hint=REBUILD)
        return Choice(strategy, reason, self._candidates(state))

    def _forced_index(self, reason: str, look_up: bool) -> Choice:
        needs = self._needs
        if needs.lookup is None:
            known = ", ".join(f"{name} ({index.field})" for name, index in needs.definition.indexes.items())
            raise Invalid(
                "index_lookup is not possible: no index can answer this filter",
                path="strategy",
                hint=f"indexes: {known or 'none'}; they answer $eq, $in and, for arrays, $contains",
            )
        ids = self._looked_up(needs.lookup) if look_up else []
        if ids is None:
            names = ", ".join(needs.lookup.names)
            raise Invalid(
                f"index_lookup is not possible: {names} is missing, damaged or of another definition",
                path="strategy",
                hint="build_indexes() or `worm table rebuild` makes it anew",
            )
        return Choice("index_lookup", reason, ids=ids)

    # Indexes

    def _by_index(self, look_up: bool) -> Choice | None:
        lookup = self._needs.lookup
        if lookup is None or self._is_scan_cheaper(lookup):
            return None
        if not look_up:
            return Choice("index_lookup", why_looked_up(lookup))
        ids = self._looked_up(lookup)
        if ids is None or self._is_left(lookup, len(ids)):
            return None
        return Choice("index_lookup", why_looked_up(lookup), ids=ids)

    def _is_scan_cheaper(self, lookup: Lookup) -> bool:
        """Before the look-up: does the manifest alone answer, with no more GETs than an index takes by itself?"""
        if self._needs.lacks is not None or is_promising(lookup, PROMISED):
            return False
        return (weight := self._scan_weight()) is not None and weight <= INDEX_GETS * len(lookup.names)

    def _is_left(self, lookup: Lookup, found: int) -> bool:
        """After the look-up: does the manifest answer with fewer GETs, or may it name fewer documents?"""
        needs = self._needs
        read = to_read(needs, lookup, found)
        if needs.lacks is None:
            if read <= PROMISED and is_promising(lookup, PROMISED):
                return False  # it would take a GET to know
            return (weight := self._scan_weight()) is not None and read > weight
        if read <= FEW or needs.narrowing is None or self.state is None:
            return False
        pages = needs.orders and needs.request.query.limit is not None
        return pages or not needs.narrowing.fields <= lookup.fields

    def _scan_weight(self) -> int | None:
        """None: there is no manifest to scan."""
        state, size = self.state, self.size
        return None if state is None or size is None else scan_weight(state, size)

    def _looked_up(self, lookup: Lookup) -> list[str] | None:
        """Ids ascending, with those that the session wrote."""
        found = lookup.resolve(self._ids_with)
        return None if found is None else sorted(found)

    def _ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str] | None:
        found = self._table.ids_with(index, values)
        return None if found is None else found | self._own.ids_with(index, values)

    # The manifest

    def _by_manifest(self, look_up: bool) -> Choice | None:
        needs = self._needs
        state = None if needs.narrowing is None else self._loaded(look_up)
        if state is None:
            return None
        columns = self._candidates(state)
        if needs.lacks is None:
            return Choice("manifest_scan", COVERED, columns)
        return Choice("manifest_targeted", f"manifest names the documents to read: {needs.lacks}", columns)

    def _loaded(self, look_up: bool) -> TableState | None:
        """The table with its rows read. A file of it may have been replaced meanwhile, so the root is asked again."""
        state = self.state
        fields = self._needs.scanned
        if not look_up or state is None or _is_readable(state, fields):
            return state
        state = self._table.state(fields)
        return state if state is not None and _is_readable(state, fields) else None

    def at_hand(self) -> Columns | None:
        """The rows that may match, where no GET is needed for them."""
        return None if self.state is None else self._candidates(self.state)

    def _candidates(self, state: TableState) -> Columns | None:
        """The rows that may match, what the session wrote among them; None where they are not read yet."""
        narrowing = self._needs.narrowing
        if state.requests or narrowing is None:
            return None
        own = self._own.own_writes(state)
        if not own:
            return state.columns
        definition, collection = self._needs.definition, self._table.collection
        base = state.columns
        kept = [at for at in narrowing.positions(base) if base.ids[at] not in own]
        ids, rows = base.ids_at(kept), [base.rows[at] for at in kept]
        for entity_id, document in own.items():
            if document is not None:
                ids.append(entity_id)
                rows.append(project(as_row(collection, entity_id, document), definition.table_fields()))
        return Columns(ids, rows)

    def _why_all(self) -> str:
        return UNUSABLE if self._needs.narrowing is not None else self._needs.lacks or UNUSABLE


def is_promising(lookup: Lookup, most: int) -> bool:
    """Does the filter itself name no more than so many ids or values of a unique index?"""
    return lookup.most is not None and lookup.most <= most


def why_looked_up(lookup: Lookup) -> str:
    if not lookup.names:
        return "the filter names the ids"
    names = ", ".join(lookup.names)
    return f"index {names} answers the filter" if len(lookup.names) == 1 else f"indexes {names} answer the filter"


def _is_readable(state: TableState, fields: Sequence[str]) -> bool:
    try:
        state.read(fields)
    except Corrupt:  # the next strategy answers; `worm verify` and `worm table list` speak of the damage
        return False
    return True
