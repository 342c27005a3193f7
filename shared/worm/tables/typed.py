"""Typed columns: the cells of a field as arrays, so that a scan makes no Python object per cell.

A part returns a `Typed` only if arrays have every cell of the field exactly (`fits`); otherwise queries run on lists of
cells. Answers are equal either way: operations that arrays cannot do exactly return None, and the caller uses cells.

Text has two forms, each made when it is needed: numbers of distinct values (`codes`), if there are few, and the bytes
of all values otherwise. Arrow compares text by bytes, which for UTF-8 is the order of code points, as in Python.

This module needs numpy and arro3-compute (extra `fast`). It is separate from `columns.py` so that only a `Typed` brings
them: without one, nothing imports this module.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain, takewhile
from math import floor
from typing import Any, Literal, Protocol, TypeAlias, cast

import arro3.compute as compute
import numpy as np
from arro3.core import Array, ChunkedArray, DataType, dictionary_dictionary, dictionary_indices
from numpy.typing import NDArray

from worm.formats import MISSING, JsonValue, Missing
from worm.tables.cells import Positions

TypedKind: TypeAlias = Literal["int", "float", "number", "bool", "text"]
Scalar: TypeAlias = "str | int | float | bool"

ARROW: dict[TypedKind, DataType] = {
    "int": DataType.int64(),
    "float": DataType.float64(),
    "number": DataType.float64(),
    "bool": DataType.bool(),
    "text": DataType.string(),
}
WHOLE_MAX = 2**53
_SAMPLE = 1024
_FEW = 16  # below this share of the rows, testing each one in Python is faster than all of them in arrays
_SCALES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_DIGITS_MAX = 10**15  # two decimals of up to 15 digits are never the same float
_COMPARE = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def fits(kind: TypedKind, value: object) -> bool:
    """Whether an array of the kind holds the value exactly. In `number`, whole values are integers, and all others
    floats."""
    if kind == "int":
        return type(value) is int and -(2**63) <= value < 2**63
    if kind == "number":
        return abs(value) <= WHOLE_MAX if type(value) is int else type(value) is float and not value.is_integer()
    return type(value) is {"float": float, "bool": bool, "text": str}[kind]


class Test(Protocol):
    """An operator with its operand. `holds`: whether a cell matches; if `negated`, where the operator does not."""

    @property
    def op(self) -> str: ...
    @property
    def value(self) -> JsonValue: ...
    @property
    def negated(self) -> bool: ...
    def holds(self, cell: JsonValue | Missing) -> bool: ...


class Typed:
    """The cells of a field: `chunks` are arrays of Arrow, one after the other, null where cells are missing; `present`:
    where they are not, None if nowhere. Chunks are not copied into one array as long as that is not needed."""

    def __init__(self, kind: TypedKind, *chunks: Array) -> None:
        self.kind = kind
        self.chunks = chunks
        self.present: NDArray[np.bool_] | None = None
        if any(chunk.null_count for chunk in chunks):
            self.present = np.concatenate([compute.is_not_null(chunk).to_numpy() for chunk in chunks])
        self._starts = np.cumsum([0, *map(len, chunks)])

    @classmethod
    def of(cls, kind: TypedKind, cells: Sequence[object]) -> Typed | None:
        """None if not all cells fit."""
        if not all(cell is MISSING or fits(kind, cell) for cell in cells):
            return None
        return cls(kind, Array([None if cell is MISSING else cell for cell in cells], type=ARROW[kind]))

    @staticmethod
    def joined(parts: Sequence[Typed]) -> Typed | None:
        """One after the other; None if their kinds differ. `float` and `number` only differ in whole values."""
        if len(parts) == 1:
            return parts[0]
        kinds = {part.kind for part in parts}
        if kinds == {"float", "number"}:
            kinds = {part.kind for part in parts if part._has_whole} or {"float"}
        return Typed(kinds.pop(), *(chunk for part in parts for chunk in part.chunks)) if len(kinds) == 1 else None

    def merged(self, newer: Sequence[object], order: Sequence[int]) -> Typed | None:
        """These cells and newer ones after them, in another order; None if the newer ones do not fit."""
        fresh = Typed.of(self.kind, newer)
        both = None if fresh is None else Typed.joined([self, fresh])
        return None if both is None else Typed(self.kind, both._taken(np.asarray(order, dtype=np.int64)))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def array(self) -> Array:
        return self.chunks[0] if len(self.chunks) == 1 else ChunkedArray(self.chunks).combine_chunks()

    # Cells

    @property
    def types(self) -> frozenset[type]:
        """The types that cells may have."""
        of_kind: dict[TypedKind, set[type]] = {"int": {int}, "float": {float}, "bool": {bool}, "text": {str}}
        return frozenset(of_kind.get(self.kind, {int, float}) | (set() if self.present is None else {Missing}))

    def cells(self, positions: Positions | None = None) -> list[Scalar | Missing]:
        """The cells of all rows, or of those at the positions."""
        taken = self.chunks if positions is None else [self._taken(_array(positions))]
        found: list[Any] = list(chain(*(chunk.to_pylist() for chunk in taken)))
        if self.kind == "number":
            found = [int(value) if value is not None and value.is_integer() else value for value in found]
        return found if self.present is None else [MISSING if value is None else value for value in found]

    def _taken(self, positions: NDArray[np.int64]) -> Array:
        if len(positions) * _FEW >= len(self) or len(self.chunks) == 1:
            return self.array.take(Array.from_numpy(positions))
        order = np.argsort(positions)
        ends = np.searchsorted(positions[order], self._starts[1:])
        slices = zip(self.chunks, self._starts, np.split(positions[order], ends[:-1]), strict=False)
        taken = [chunk.take(Array.from_numpy(at - start)) for chunk, start, at in slices]
        return ChunkedArray(taken).combine_chunks().take(Array.from_numpy(np.argsort(order)))

    @cached_property
    def _dense(self) -> list[Array]:
        """The chunks with only the cells that are present."""
        return [compute.filter(one, compute.is_not_null(one)) if one.null_count else one for one in self.chunks]

    def _numbers(self) -> NDArray[Any]:
        return np.concatenate([chunk.to_numpy() for chunk in self._dense])

    def _spread(self, dense: NDArray[Any]) -> NDArray[Any]:
        """An array for the cells that are present as one for all; zero elsewhere."""
        if self.present is None:
            return dense
        spread = np.zeros(len(self), dtype=dense.dtype)
        spread[self.present] = dense
        return spread

    @cached_property
    def values(self) -> NDArray[Any]:
        """Numbers or booleans; not for text."""
        return self._spread(self._numbers())

    @property
    def _has_whole(self) -> bool:
        dense = self._numbers()
        return bool((dense == np.floor(dense)).any())

    def held(self, positions: Positions) -> NDArray[np.int64]:
        """The positions that have a value."""
        found = _array(positions)
        return found if self.present is None else found[self.present[found]]

    def lacking(self, positions: Positions) -> NDArray[np.int64]:
        """The positions that have none."""
        found = _array(positions)
        return found[:0] if self.present is None else found[~self.present[found]]

    # Distinct values

    @cached_property
    def _dictionary(self) -> tuple[NDArray[np.int64], Array]:
        if self.kind == "bool":  # Arrow makes no dictionary of booleans
            return self._spread(self._numbers().astype(np.int64)), Array([False, True], type=DataType.bool())
        is_float = self.kind in ("float", "number")  # which have two zeros
        dense = [Array.from_numpy(self._numbers() + 0.0)] if is_float else self._dense
        coded = list(map(compute.dictionary_encode, dense))
        names = compute.dictionary_encode(ChunkedArray(list(map(dictionary_dictionary, coded))).combine_chunks())
        places = np.split(
            dictionary_indices(names).to_numpy(), np.cumsum([len(dictionary_dictionary(one)) for one in coded])
        )
        codes = [place[dictionary_indices(one).to_numpy()] for place, one in zip(places, coded, strict=False)]
        return self._spread(np.concatenate(codes)), dictionary_dictionary(names)

    @property
    def names(self) -> Array:
        """The distinct values."""
        return self._dictionary[1]

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """For each row the number of its value in `names`; beyond the last for missing ones."""
        codes, names = self._dictionary
        return codes if self.present is None else np.where(self.present, codes, len(names))

    def distinct(self, positions: Positions) -> list[Scalar]:
        """The distinct values at the positions, in any order."""
        seen = np.zeros(len(self.names) + 1, dtype=np.bool_)
        seen[self.codes[_array(positions)]] = True
        return cast("list[Scalar]", Typed(self.kind, self.names).cells(np.flatnonzero(seen[:-1])))

    @cached_property
    def is_narrow(self) -> bool:
        """Whether text has few distinct values, as far as its first rows show."""
        filled = next((chunk for chunk in self._dense if len(chunk)), self._dense[0])
        first = filled.slice(0, min(_SAMPLE, len(filled)))
        return len(dictionary_dictionary(compute.dictionary_encode(first))) * 2 <= len(first)

    # Filters

    def where(self, test: Test, candidates: Positions) -> NDArray[np.int64] | None:
        """The candidates whose cells match; None if arrays are no faster."""
        if len(candidates) * _FEW < len(self):
            at = _array(candidates)
            return at[np.fromiter(map(test.holds, self.cells(at)), dtype=np.bool_, count=len(at))]
        mask = self._mask(test)
        if mask is None:
            return None
        return chosen(candidates, mask if self.present is None else np.where(self.present, mask, test.holds(MISSING)))

    def _mask(self, test: Test) -> NDArray[np.bool_] | None:
        """Which rows match; where cells are missing, it has no meaning."""
        if self.kind == "text":
            return self._text_mask(test)
        if self.kind == "bool":
            return np.where(self.values, test.holds(True), test.holds(False))
        if test.op in ("$eq", "$in"):
            operands = cast("list[JsonValue]", test.value) if test.op == "$in" else [test.value]
            own = [one for operand in operands if (one := self._own(operand)) is not None]
            return cast("NDArray[np.bool_]", np.isin(self.values, np.array(own, self.values.dtype)) != test.negated)
        if test.op in _COMPARE and type(test.value) in (int, float):
            return self._compared(test.op, cast("int | float", test.value))
        if self.kind == "int":
            return np.full(len(self), test.holds(1))
        return np.where(self.values == np.floor(self.values), test.holds(1), test.holds(0.5))

    def _own(self, operand: object) -> int | float | None:
        """The operand as a value of the array; None if no value of the array equals it."""
        if type(operand) not in (int, float):
            return None
        number = cast("int | float", operand)
        try:
            own = floor(number) if self.kind == "int" else float(number)
        except OverflowError:
            return None
        return own if own == number and (self.kind != "int" or -(2**63) <= own < 2**63) else None

    def _compared(self, op: str, bound: int | float) -> NDArray[np.bool_]:
        """Exact for every bound: it is replaced by the largest value of the array's type that is not above it."""
        own: int | float
        if self.kind == "int":
            own = floor(bound)  # numpy compares integers of any size
        else:
            try:
                own = float(bound)
            except OverflowError:
                own = sys.float_info.max if bound > 0 else -np.inf
            own = own if own <= bound else float(np.nextafter(own, -np.inf))
        if own < bound:
            op = {"$gte": "$gt", "$lt": "$lte"}.get(op, op)
        return cast("NDArray[np.bool_]", _COMPARE[op](self.values, own))

    def _text_mask(self, test: Test) -> NDArray[np.bool_] | None:
        wanted = test.value if isinstance(test.value, list) and test.op == "$in" else [test.value]
        if test.op in ("$eq", "$in") and len(wanted) <= _FEW and all(isinstance(one, str) for one in wanted):
            of_bytes = [_Bytes(self.names)] if self.is_narrow else self._bytes
            found = np.concatenate([one.equal(cast("list[str]", wanted)) for one in of_bytes]) != test.negated
        elif self.is_narrow:
            found = np.fromiter(map(test.holds, self._name_list), dtype=np.bool_, count=len(self.names))
        else:
            return None
        return np.append(found, False)[self.codes] if self.is_narrow else self._spread(found)

    @cached_property
    def _name_list(self) -> list[str]:
        return cast("list[str]", self.names.to_pylist())

    @cached_property
    def _bytes(self) -> list[_Bytes]:
        return [_Bytes(chunk) for chunk in self._dense if len(chunk)]

    # Order

    @cached_property
    def ranks(self) -> NDArray[Any] | None:
        """In the order of the values, and equal where they are equal; None for text with many distinct values."""
        if self.kind != "text":
            return self.values
        if not self.is_narrow:
            return None
        names = self._name_list
        ranks = np.zeros(len(names) + 1, dtype=np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return cast("NDArray[Any]", ranks[self.codes])

    @cached_property
    def _prefixes(self) -> NDArray[Any]:
        """In the order of the values, but equal for values that begin in the same way: after a common beginning."""
        low, high = min(one.least for one in self._bytes), max(one.most for one in self._bytes)
        skipped = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False)))
        return self._spread(np.concatenate([one.prefixes(skipped) for one in self._bytes]))

    def sorted(self, positions: Positions, descending: bool) -> Positions:
        """In the order of the values, stable; missing ones come last."""
        present, ranks = self.held(positions), self.ranks
        if ranks is None:
            keys = cast("list[str]", self.cells(present))
            order: Any = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
        elif descending:
            order = len(present) - 1 - np.argsort(ranks[present][::-1], kind="stable")[::-1]
        else:
            order = np.argsort(ranks[present], kind="stable")
        return np.concatenate([present[np.asarray(order, dtype=np.int64)], self.lacking(positions)])

    def first(self, present: Positions, descending: bool, count: int) -> tuple[Positions, Positions]:
        """The positions that include the first `count` in the order: those before the last one of them, and those equal
        to it. If equality is not known, the second are empty."""
        at, is_exact = _array(present), self.ranks is not None
        keys = (self._prefixes if self.ranks is None else self.ranks)[at]
        place = len(keys) - count if descending else count - 1
        last = np.partition(keys, place)[place]
        before, equal = at[keys > last if descending else keys < last], at[keys == last]
        return (before, equal) if is_exact else (at[keys >= last if descending else keys <= last], at[:0])

    # Totals

    @cached_property
    def _scaled(self) -> tuple[NDArray[np.int64], int, int] | None:
        """Numbers as multiples of `1 / scale`, the scale, and their largest size; None if there is no such scale.

        A float that equals the quotient of an integer of up to 15 digits and the scale is shown as that decimal: no
        other decimal of so few digits is the same float."""
        if self.kind == "int":
            low, high = (int(self.values.min()), int(self.values.max())) if len(self) else (0, 0)
            return self.values, 1, max(high, -low)
        for scale in _SCALES:
            if not _is_scaled(self.values[:_SAMPLE], scale) or not _is_scaled(self.values, scale):
                continue
            whole = np.rint(self.values * scale).astype(np.int64)
            return whole, scale, int(np.abs(whole).max(initial=0))
        return None

    def total(self, positions: Positions) -> tuple[Fraction, bool, int] | None:
        """The exact sum, whether all values are integers (if the sum is so large that this matters), and their number.
        None if it takes more than 64 bits, or if the values are not numbers."""
        if self.kind in ("text", "bool") or self._scaled is None:
            return None
        whole, scale, largest = self._scaled
        found = whole[self.held(positions)]
        if len(found) * largest >= 2**63:
            return None
        total = Fraction(int(found.sum()), scale)
        is_whole = self.kind == "int" or (
            self.kind == "number" and abs(total) > WHOLE_MAX and not (found % scale).any()
        )
        return total, is_whole, len(found)

    def extreme(self, positions: Positions, largest: bool) -> Scalar | None:
        """The smallest or largest number or text; None if there is none."""
        at = self.held(positions)
        if not len(at) or self.kind == "bool":
            return None
        if self.kind == "text":
            return cast(str, (compute.max if largest else compute.min)(self._taken(at)).as_py())
        numbers = self.values[at]
        return cast("int | float", (numbers.max() if largest else numbers.min()).item())

    def in_order(self, positions: Positions) -> NDArray[Any] | None:
        """The numbers, ascending; None if the values are not numbers."""
        return None if self.kind in ("text", "bool") else np.sort(self.values[self.held(positions)])


def _is_scaled(numbers: NDArray[np.float64], scale: int) -> bool:
    with np.errstate(over="ignore"):
        whole = np.rint(numbers * scale)
    return bool((np.abs(whole) < _DIGITS_MAX).all() and (whole / scale == numbers).all())


def _array(positions: Positions) -> NDArray[np.int64]:
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step)
    return np.asarray(positions, dtype=np.int64)


def chosen(candidates: Positions, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The candidates where the mask is true."""
    if isinstance(candidates, range):
        return np.flatnonzero(mask)
    at = _array(candidates)
    return at[mask[at]]


def without(candidates: Positions, removed: Positions, size: int) -> NDArray[np.int64]:
    """The candidates without the removed ones; `size` is above every position."""
    mask = np.ones(size, dtype=np.bool_)
    mask[_array(removed)] = False
    return chosen(candidates, mask)


def grouped(columns: Sequence[Typed], positions: Positions) -> list[NDArray[np.int64]]:
    """The positions by the values of the columns; within a group they keep their order."""
    at = _array(positions)
    groups, size = np.zeros(1, dtype=np.int64), 1
    for column in columns:
        groups = groups * (len(column.names) + 1) + (column.codes if isinstance(positions, range) else column.codes[at])
        size *= len(column.names) + 1
        if size > 2**31:  # the next product must fit into 64 bits
            found, groups = np.unique(groups, return_inverse=True)
            size = len(found)
    if not len(at):
        return []
    narrow = groups.astype(np.uint8 if size <= 2**8 else np.uint16 if size <= 2**16 else np.int64)  # faster to sort
    order = np.argsort(narrow, kind="stable")
    return np.split(at[order], np.flatnonzero(np.diff(narrow[order])) + 1)


class _CArray(ctypes.Structure):
    """The beginning of an array in the Arrow C data interface, which no version of Arrow changes."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Bytes:
    """The UTF-8 bytes of an array of text without nulls, and the least and most of the texts."""

    def __init__(self, texts: Array) -> None:
        self._texts = texts
        _, self._owner = texts.__arrow_c_array__()  # keeps the memory
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        array = _CArray.from_address(pointer(self._owner, b"arrow_array"))
        if not len(texts):
            self._starts = self._ends = np.zeros(0, dtype=np.int64)
            self._data = np.zeros(0, dtype=np.uint8)
            return
        offsets = _viewed(array.buffers[1], np.int32, array.offset + array.length + 1)[array.offset :]
        self._starts, self._ends = offsets[:-1], offsets[1:]
        self._data = _viewed(array.buffers[2], np.uint8, int(offsets[-1]))

    def equal(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which values are one of the texts. Compares from the end, where values with a common beginning differ."""
        mask = np.zeros(len(self._starts), dtype=np.bool_)
        for wanted in map(str.encode, texts):
            at = np.flatnonzero(self._ends - self._starts == len(wanted))
            for back, byte in enumerate(reversed(wanted), 1):
                at = at[self._data[self._ends[at] - back] == byte]
            mask[at] = True
        return mask

    @property
    def least(self) -> bytes:
        return cast(str, compute.min(self._texts).as_py()).encode()

    @property
    def most(self) -> bytes:
        return cast(str, compute.max(self._texts).as_py()).encode()

    def prefixes(self, skipped: int) -> NDArray[np.uint64]:
        """The eight bytes after those that are skipped, as numbers; zero beyond the end of a value."""
        starts = self._starts + skipped
        is_long = int((self._ends - starts).min()) >= 8
        data = self._data if is_long else np.concatenate([self._data, np.zeros(8, dtype=np.uint8)])
        eights = np.ndarray(shape=(len(data) - 7,), dtype=">u8", buffer=data.data, strides=(1,))
        found = eights[starts].byteswap(inplace=True).view(np.uint64)
        if is_long:
            return found
        beyond = (8 * (8 - np.minimum(self._ends - starts, 8))).astype(np.uint64)
        return np.where(beyond == 64, 0, found >> np.minimum(beyond, 63) << np.minimum(beyond, 63))


def _viewed(address: int | None, kind: type, count: int) -> NDArray[Any]:
    """The memory at an address as an array, not copied."""
    if not address or not count:
        return np.zeros(0, dtype=kind)
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), dtype=kind)
