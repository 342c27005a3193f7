"""Columns over rows that are kept as bytes: one file, or the partitions of a spread table with its deltas."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Protocol, overload

from worm.collections.changes import Row
from worm.tables.coded import Coded
from worm.tables.columns import Cell, Columns, copied
from worm.tables.manifest import Manifest

FEW = 64
"""For less than this part of the ids it does not pay to have all of them."""


class Part(Protocol):
    """Rows of one range of ids, in the order of ids."""

    @property
    def count(self) -> int:
        """Of rows."""
        ...

    @property
    def ids(self) -> Sequence[str]: ...
    def id(self, at: int) -> str: ...
    @property
    def seqs(self) -> Mapping[str, int]: ...
    @property
    def etags(self) -> Mapping[str, str]: ...
    def row(self, at: int) -> Row:
        """The caller's own."""
        ...

    def cells(self, field: str) -> list[Cell]: ...
    def coded(self, field: str) -> Coded | None:
        """The cells by their values, where they are kept so."""
        ...

    def prepare(self, fields: Iterable[str]) -> None: ...


class ParsedRows:
    """A partition that is in memory anyhow, because this process wrote it."""

    def __init__(self, manifest: Manifest) -> None:
        rows = sorted(manifest.entities.items())
        self._columns = Columns([one for one, _ in rows], [row for _, row in rows])
        self.ids: Sequence[str] = self._columns.ids
        self.seqs: Mapping[str, int] = manifest.seqs
        self.etags: Mapping[str, str] = manifest.etags

    @property
    def count(self) -> int:
        return len(self.ids)

    def id(self, at: int) -> str:
        return self.ids[at]

    def row(self, at: int) -> Row:
        return {name: copied(value) for name, value in self._columns.rows[at].items()}

    def cells(self, field: str) -> list[Cell]:
        return self._columns.cells(field)

    def coded(self, field: str) -> Coded | None:
        return None

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
    def count(self) -> int:
        return len(self.ids)

    def id(self, at: int) -> str:
        return self.ids[at]

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

    def coded(self, field: str) -> Coded | None:
        return None

    def prepare(self, fields: Iterable[str]) -> None:
        self._base.prepare(fields)


class _Rows(Sequence[Row]):
    """The rows of all parts. Each is parsed when it is asked for; only when as many were asked for as there are, all of
    them are parsed once more and kept."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(part.count for part in parts)]
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
        part = self._part(at)
        return self._parts[part].row(at - self._starts[part])

    def id(self, at: int) -> str:
        part = self._part(at)
        return self._parts[part].id(at - self._starts[part])

    def _part(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    @property
    def _all(self) -> list[Row]:
        if self._kept is None:
            self._left, self._kept = 0, [part.row(at) for part in self._parts for at in range(part.count)]
        return self._kept


class StoredColumns(Columns):
    """The parts of a table, one after the other: rows in the order of ids."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._rows = _Rows(parts)
        super().__init__((), self._rows)

    @cached_property
    def _all_ids(self) -> Sequence[str]:
        return self._parts[0].ids if len(self._parts) == 1 else list(chain(*(part.ids for part in self._parts)))

    @property
    def ids(self) -> Sequence[str]:
        return self._all_ids

    def ids_at(self, positions: Sequence[int]) -> list[str]:
        if len(positions) * FEW < len(self):
            return list(map(self._rows.id, positions))
        return super().ids_at(positions)

    def prepare(self, fields: Iterable[str]) -> None:
        wanted = [field for field in fields if field != "id" and field not in self._columns]
        for part in self._parts if wanted else ():
            part.prepare(wanted)

    def found(self, field: str) -> list[Cell] | Coded:
        coded = [one for part in self._parts if (one := part.coded(field)) is not None]
        joined = Coded.joined(coded) if len(coded) == len(self._parts) else None
        return self.cells(field) if joined is None else joined

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
        rows = map(self._rows.parsed, positions)
        return [{"id": entity_id, **row} for entity_id, row in zip(self.ids_at(positions), rows, strict=True)]

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
