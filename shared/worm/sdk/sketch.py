"""The seqs of all documents that a reader has seen, in a few cells, however many documents there are.

A *sketch* represents a table of seqs, one for each id. Sketches of equal size can be subtracted. If two tables differ
in few ids (at most about two thirds of the cells), the difference shows which ones, and by how much. If they differ in
more, it says that it cannot tell. A wrong answer has a probability of about 1 in 10^12.

Each id has a *mark*, a number derived from its hash, and counts in three cells. A cell keeps the sum of its seqs, and
the sum of seq times mark modulo a prime. If only one id differs in a cell, the quotient of the two is its mark. It is
then removed from its other cells, where again only one may be left, and so on (an invertible Bloom lookup table).

It is arithmetic, and knows nothing of feeds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from hashlib import blake2b

from worm.values import dataclass

PRIME = (1 << 61) - 1
PER_ID = 3
_SHIFT = 20


def mark_of(entity_id: str) -> int:
    digest = blake2b(entity_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % (PRIME - 1) + 1


@dataclass(frozen=True, slots=True)
class Sketch:
    """See above. `sums` and `products` have one number for each cell."""

    sums: tuple[int, ...]
    products: tuple[int, ...]

    @classmethod
    def empty(cls, cells: int) -> Sketch:
        """A sketch with this number of cells, or up to two more."""
        count = -(-cells // PER_ID) * PER_ID
        return cls((0,) * count, (0,) * count)

    @property
    def size(self) -> int:
        return len(self.sums)

    @property
    def is_empty(self) -> bool:
        return not any(self.sums) and not any(self.products)

    def plus(self, seqs: Iterable[tuple[str, int]]) -> Sketch:
        """The sketch with these added: pairs of an id and a seq, which may be negative."""
        draft = _Draft(self)
        for entity_id, seq in seqs:
            if seq:
                draft.add(mark_of(entity_id), seq)
        return draft.sketch()

    def minus(self, other: Sketch) -> Sketch:
        sums = tuple(ours - theirs for ours, theirs in zip(self.sums, other.sums, strict=True))
        pairs = zip(self.products, other.products, strict=True)
        return Sketch(sums, tuple((ours - theirs) % PRIME for ours, theirs in pairs))

    def told(self, ids: Iterable[str]) -> dict[str, int] | None:
        """The ids that count in it, each with its number; None if it cannot tell, or if some are not in `ids`."""
        if self.is_empty:
            return {}
        names = {mark_of(entity_id): entity_id for entity_id in ids}
        found = _Draft(self).taken_apart(names)
        return None if found is None else {names[mark]: number for mark, number in found.items()}


class _Draft:
    """A sketch that changes."""

    def __init__(self, start: Sketch) -> None:
        self._sums, self._products = list(start.sums), list(start.products)
        self._third = start.size // PER_ID

    def sketch(self) -> Sketch:
        return Sketch(tuple(self._sums), tuple(self._products))

    def add(self, mark: int, seq: int) -> None:
        for cell in self._cells(mark):
            self._sums[cell] += seq
            self._products[cell] = (self._products[cell] + seq * mark) % PRIME

    def _cells(self, mark: int) -> tuple[int, int, int]:
        third = self._third
        return mark % third, third + (mark >> _SHIFT) % third, 2 * third + (mark >> 2 * _SHIFT) % third

    def taken_apart(self, known: Container[int]) -> dict[int, int] | None:
        """Every mark with its number; None if some cells are left with several differences, or with an unknown one."""
        found: dict[int, int] = {}
        todo = list(range(len(self._sums)))
        while todo:
            cell = todo.pop()
            total = self._sums[cell]
            mark = self._products[cell] * pow(total, -1, PRIME) % PRIME if total % PRIME else 0
            if mark in found or mark not in known or cell not in self._cells(mark):
                continue
            found[mark] = total
            self.add(mark, -total)
            todo += (one for one in self._cells(mark) if one != cell)
        return found if not any(self._sums) and not any(self._products) else None
