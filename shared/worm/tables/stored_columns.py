"""Columns over rows that are kept as bytes: one file, or the partitions of a spread table with its deltas."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Protocol, overload

from worm.collections.changes import Row
from worm.tables.columns import Cell, Columns, copied
from worm.tables.manifest import Manifest


class Part(Protocol):
    """Rows of one range of ids, in the order of ids."""

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def seqs(self) -> Mapping[str, int]: ...
    @property
    def etags(self) -> Mapping[str, str]: ...
    def row(self, at: int) -> Row:
        """The caller's own."""
        ...

    def cells(self, field: str) -> list[Cell]: ...
    def prepare(self, fields: Iterable[str]) -> None: ...


class ParsedRows:
    """A partition that is in memory anyhow, because this process wrote it."""

    def __init__(self, manifest: Manifest) -> None:
        rows = sorted(manifest.entities.items())
        self._columns = Columns([one for one, _ in rows], [row for _, row in rows])
        self.ids: Sequence[str] = self._columns.ids
        self.seqs: Mapping[str, int] = manifest.seqs
        self.etags: Mapping[str, str] = manifest.etags

    def row(self, at: int) -> Row:
        return {name: copied(value) for name, value in self._columns.rows[at].items()}

    def cells(self, field: str) -> list[Cell]:
        return self._columns.cells(field)

    def prepare(self, fields: Iterable[str]) -> None:
        self._columns.prepare(fields)


class MergedRows:
    """A partition and what deltas know newer of its ids. Positions are of both together, the partition's first."""

    def __init__(self, base: Part, newer: Manifest) -> None:
        self._base = base
        self._newer = newer
        self._fresh = ParsedRows(newer)
        both = [*base.ids, *self._fresh.ids]
        left = [at for at, entity_id in enumerate(base.ids) if entity_id not in newer.seqs]
        self._order = sorted([*left, *range(len(base.ids), len(both))], key=both.__getitem__)
        self.ids: Sequence[str] = list(map(both.__getitem__, self._order))

    @classmethod
    def of(cls, base: Part, delta: Manifest) -> Part:
        """Only what is newer counts. A partition of a model without oplog has no seqs: everything is newer."""
        if not delta.seqs:
            return base
        newer = [entity_id for entity_id, seq in delta.seqs.items() if seq > base.seqs.get(entity_id, 0)]
        return cls(base, delta.part(newer)) if newer else base

    @property
    def seqs(self) -> Mapping[str, int]:
        return {**self._base.seqs, **self._newer.seqs}

    @property
    def etags(self) -> Mapping[str, str]:
        left = {one: etag for one, etag in self._base.etags.items() if one not in self._newer.seqs}
        return {**left, **self._newer.etags}

    def row(self, at: int) -> Row:
        beyond = self._order[at] - len(self._base.ids)
        if beyond < 0:
            return self._base.row(self._order[at])
        return self._fresh.row(beyond)

    def cells(self, field: str) -> list[Cell]:
        both = [*self._base.cells(field), *self._fresh.cells(field)]
        return list(map(both.__getitem__, self._order))

    def prepare(self, fields: Iterable[str]) -> None:
        self._base.prepare(fields)


class _Rows(Sequence[Row]):
    """The rows of all parts. Each is parsed when it is asked for; only when as many were asked for as there are, all of
    them are parsed once more and kept."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part.ids) for part in parts)]
        self._left = len(self)
        self._kept: list[Row] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        at = range(len(self))[at]
        return self.parsed(at) if self.is_short_of(1) else self._all[at]

    def is_short_of(self, count: int) -> bool:
        """Is so much more parsing still less than parsing everything? Then it is counted."""
        if count > self._left:
            return False
        self._left -= count
        return True

    def parsed(self, at: int) -> Row:
        """The caller's own."""
        part = bisect_right(self._starts, at) - 1
        return self._parts[part].row(at - self._starts[part])

    @property
    def _all(self) -> list[Row]:
        if self._kept is None:
            self._left, self._kept = 0, [part.row(at) for part in self._parts for at in range(len(part.ids))]
        return self._kept


class StoredColumns(Columns):
    """The parts of a table, one after the other: rows in the order of ids."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._rows = _Rows(parts)
        super().__init__(parts[0].ids if len(parts) == 1 else list(chain(*(part.ids for part in parts))), self._rows)

    def prepare(self, fields: Iterable[str]) -> None:
        wanted = [field for field in fields if field != "id" and field not in self._columns]
        for part in self._parts if wanted else ():
            part.prepare(wanted)

    def cells(self, field: str) -> list[Cell]:
        if len(self._parts) == 1:
            return self._parts[0].cells(field)
        return list(chain(*(part.cells(field) for part in self._parts)))

    def in_id_order(self, positions: Sequence[int]) -> Sequence[int]:
        return positions

    def copies(self, positions: Sequence[int]) -> list[Row]:
        """Rows that are parsed for the caller are copies already."""
        if not self._rows.is_short_of(len(positions)):
            return super().copies(positions)
        return [{"id": self.ids[at], **self._rows.parsed(at)} for at in positions]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The position of each id."""
        return {entity_id: at for at, entity_id in enumerate(self.ids)}


class RowsById(Mapping[str, Row]):
    """The rows of columns under their ids."""

    def __init__(self, columns: StoredColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.ids)

    def __getitem__(self, entity_id: str) -> Row:
        return self._columns.rows[self._columns.places[entity_id]]
