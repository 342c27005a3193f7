"""The rows of one column file: a field is inflated and parsed when it is asked for, a row with its group.

Every value is the one that parsing the partition would give, and a row has its keys in the same order. It takes nothing
but zlib and orjson.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias, cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import JsonValue
from worm.collections.changes import Row
from worm.errors import Corrupt
from worm.tables.coded import Coded
from worm.tables.column_format import REPAIR, Block, cells_of, coded_of, decode_header, group_of
from worm.tables.columns import Cell, copied
from worm.tables.manifest import Manifest
from worm.tables.stored_rows import with_descent

_CELL_BYTES = 4  # brackets and comma around a cell that may be missing
_REST_BYTES = 64
_NESTED = frozenset({list, dict})

Cells: TypeAlias = "list[JsonValue | Missing]"


class ColumnRows:
    """An intact column file. `of` is the hash in the partition's name, `size` the bytes of the partition: no column can
    be much larger, so nothing larger is inflated."""

    def __init__(self, body: bytes, key: str, of: str, size: int) -> None:
        self._body = body
        self._key = key
        self._contents = contents = decode_header(body, key)
        if contents.of != of:
            raise Corrupt(f"of another partition: {contents.of}", key=key, hint=REPAIR)
        if any(block.size > size + _CELL_BYTES * contents.rows + _REST_BYTES for block in contents.blocks):
            raise Corrupt("a column would be larger than its partition", key=key, hint=REPAIR)
        self._blocks = {block.name: block for block in contents.fields}
        self._cells: dict[str, Cells] = {}
        self._coded: dict[str, Coded] = {}
        self._fields: dict[str, list[Cell]] = {}
        self._group: tuple[int, list[tuple[str, Cells]]] = (-1, [])
        self._groups_left = self._id_groups_left = len(contents.ids.groups)

    @property
    def count(self) -> int:
        return self._contents.rows

    @cached_property
    def ids(self) -> Sequence[str]:
        return cast("list[str]", self._inflated(self._contents.ids))

    def id(self, at: int) -> str:
        """With its group. Once as many groups were parsed as there are, all ids are, and kept."""
        if "ids" in self.__dict__ or self._id_groups_left <= 0:
            return self.ids[at]
        self._id_groups_left -= 1
        number, place = divmod(at, self._contents.group)
        return cast("list[str]", self._inflated_group(self._contents.ids, number))[place]

    @cached_property
    def seqs(self) -> Mapping[str, int]:
        return cast("dict[str, int]", self._by_id(self._contents.seqs))

    @cached_property
    def etags(self) -> Mapping[str, str]:
        return cast("dict[str, str]", self._by_id(self._contents.etags))

    def cells(self, field: str) -> list[Cell]:
        """What the field's path finds in each row."""
        found = self._fields.get(field)
        if found is None:
            names = (field, field.partition(".")[0])
            found = self._fields[field] = with_descent(field, {name: self._column(name) for name in names})
        return found

    def coded(self, field: str) -> Coded | None:
        """The cells by their values, where they are stored so. Not of a path, which may lead into an object."""
        block = self._blocks.get(field)
        return None if block is None or not block.values or "." in field else self._by_values(block)

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of these fields."""
        for field in fields:
            if self.coded(field) is None:
                self.cells(field)

    def row(self, at: int) -> Row:
        """The caller's own. Once as many groups were parsed as there are, all columns are, and kept."""
        number, place = divmod(at, self._contents.group)
        if self._groups_left <= 0:
            return _row([(name, self._column(name)) for name in self._blocks], at)
        held, columns = self._group
        if held != number:
            self._groups_left -= 1
            columns = [(block.name, self._part(block, number)) for block in self._contents.fields]
            self._group = number, columns
        return _row(columns, place)

    def manifest(self, model: str) -> Manifest:
        """Everything that it says, as the partition says it. Columns must say the same whole and group by group."""
        columns = [(block.name, self._column(block.name)) for block in self._contents.fields]
        for block, (name, cells) in zip(self._contents.fields, columns, strict=True):
            groups = range(0 if block.values else len(block.groups))
            if groups and [cell for number in groups for cell in self._inflated_group(block, number)] != cells:
                raise Corrupt(f"the groups of {name!r} are not the column", key=self._key, hint=REPAIR)
        entities = {entity_id: _row(columns, at) for at, entity_id in enumerate(self.ids)}
        return Manifest(model, entities, dict(self.seqs), etags=dict(self.etags))

    def _column(self, name: str) -> Cells:
        found = self._cells.get(name)
        if found is None:
            block = self._blocks.get(name)
            if block is None:
                found = [MISSING] * self.count
            else:
                found = cast(Cells, self._by_values(block).cells()) if block.values else self._inflated(block)
            self._cells[name] = found
        return found

    def _part(self, block: Block, number: int) -> Cells:
        """One group of a column, from the whole column where that is there."""
        whole, start = self._cells.get(block.name), number * self._contents.group
        end = start + self._contents.group
        if whole is None and block.values:
            return cast(Cells, self._by_values(block).cells(start, end))
        return self._inflated_group(block, number) if whole is None else whole[start:end]

    def _by_values(self, block: Block) -> Coded:
        found = self._coded.get(block.name)
        if found is None:
            found = self._coded[block.name] = coded_of(self._body, block, self.count, self._key)
        return found

    def _inflated_group(self, block: Block, number: int) -> Cells:
        count = min(self._contents.group, self._contents.rows - number * self._contents.group)
        return group_of(self._body, block, number, count, self._key)

    def _inflated(self, block: Block) -> Cells:
        return cells_of(self._body, block, self._contents.rows, self._key)

    def _by_id(self, block: Block) -> dict[str, JsonValue]:
        cells = zip(self.ids, self._inflated(block), strict=True)
        (others,) = cells_of(self._body, self._contents.others, 1, self._key)
        rest = others.get(block.name) if isinstance(others, dict) else None
        if not isinstance(rest, dict):
            raise Corrupt(f"tells no {block.name} of ids without a row", key=self._key, hint=REPAIR)
        return {one: cell for one, cell in cells if not isinstance(cell, Missing)} | rest


def _row(columns: Iterable[tuple[str, Cells]], at: int) -> Row:
    return {
        name: copied(cell) if type(cell) in _NESTED else cell
        for name, cells in columns
        if not isinstance(cell := cells[at], Missing)
    }
