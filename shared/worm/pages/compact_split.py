"""Cutting the pages of a task into ranges of about equal work, so that several processes can share it.

Cuts are first pages of blocks, which the indexes of the layers tell: no page is in two parts, none of a merge is empty,
and the same root gives the same parts wherever it is planned. A part has at least the bytes of a whole layer, or a
split would leave many small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from worm.pages.reading import LayerReader, Piece, within
from worm.store.parallel import in_parallel


def split(reader: LayerReader, pieces: Sequence[Piece], parts: int, least_bytes: int) -> list[list[Piece]]:
    """The pieces, which follow one another, in at most so many parts. One request for each layer, if it may be cut."""
    whole = [list(pieces)]
    layers = {one.layer.path: one.layer for piece in pieces for one in piece.candidates}
    if min(parts, sum(layer.size for layer in layers.values()) // least_bytes) < 2:
        return whole
    in_parallel(reader.index, layers.values())
    weights = Counter[str]()
    for piece in pieces:
        for one in piece.candidates:
            for ref in reader.index(one.layer).blocks_between(piece.start, piece.end):
                weights[max(ref.page, piece.start)] += ref.length
    parts = min(parts, weights.total() // least_bytes)
    if parts < 2:
        return whole
    bounds = [pieces[0].start, *_cuts(weights, parts), pieces[-1].end]
    return [list(_between(pieces, str(start), end)) for start, end in pairwise(bounds)]


def _cuts(weights: Counter[str], parts: int) -> Iterator[str]:
    """The first pages of all parts but the first, which has the first page of all."""
    before, made, total = 0, 1, weights.total()
    for page in sorted(weights):
        if before * parts >= made * total:
            yield page
            made = before * parts // total + 1
        before += weights[page]


def _between(pieces: Sequence[Piece], start: str, end: str | None) -> Iterator[Piece]:
    for piece in pieces:
        inside = within((piece.start, piece.end), (start, end))
        if inside is not None:
            yield Piece(*inside, [one for one in piece.candidates if one.layer.overlaps(*inside)])
