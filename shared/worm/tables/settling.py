"""Merging the deltas of a spread table: among each other, and into its base. One flip of the root each.

Nothing is merged in place: the new files are written first, then the root names them instead of the old ones. Whoever
loses the race for the root has written files that nobody names; they are collected later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from worm.store.cas import CasFile
from worm.tables.keyed import T
from worm.tables.pieces import Pieces
from worm.tables.spread import Piece, Spread

DELTAS_MAX = 8


class Settled(Protocol[T]):
    """A tree, as far as merging needs it."""

    keeps_seqs: bool

    @property
    def file(self) -> CasFile[T | Spread]: ...
    @property
    def pieces(self) -> Pieces[T]: ...
    def put(self, stem: str, part: T, *, start: str = "", level: int = 0) -> Piece: ...
    def reformed(self, root: Spread) -> T | Spread: ...


def merge_deltas(tree: Settled[T]) -> None:
    """As long as a level is full, make one delta of the next level of it."""
    while isinstance(root := tree.file.held.value, Spread):
        same = _full_level(root.deltas)
        if same is None:
            return
        first, *others = tree.pieces.get([piece.file for piece in same])
        merged = tree.put("delta", first.merged(others), level=same[0].level + 1)
        tree.file.update(partial(_replacing, gone=same, merged=merged))


def merge_base(tree: Settled[T], start: Spread) -> bool:
    """Make a new base of the base and the deltas of `start`; what was folded since stays a delta. False when another
    was quicker."""
    formed = tree.reformed(start)
    taken = {piece.file for piece in start.deltas}
    is_ours = False

    def change(root: T | Spread | None) -> T | Spread | None:
        nonlocal is_ours
        is_ours = False
        if not isinstance(root, Spread) or (root.partitions, root.directory) != (start.partitions, start.directory):
            return None
        rest = tuple(piece for piece in root.deltas if piece.file not in taken)
        if not tree.keeps_seqs and len(root.deltas) - len(rest) != len(taken):
            return None  # some of ours were merged with newer ones meanwhile; without seqs nothing tells their order
        if not isinstance(formed, Spread):
            is_ours = not rest
            return None if rest else formed
        is_ours = True
        newest = max(formed.last_updated, root.last_updated)
        revision = formed.revision if tree.keeps_seqs else root.revision
        return replace(formed, deltas=rest, last_updated=newest, revision=revision)

    tree.file.update(change)
    return is_ours


def _full_level(deltas: Sequence[Piece]) -> list[Piece] | None:
    for level in range(max((piece.level for piece in deltas), default=0) + 1):
        same = [piece for piece in deltas if piece.level == level]
        if len(same) >= DELTAS_MAX:
            return same
    return None


def _replacing(root: T | Spread | None, gone: Sequence[Piece], merged: Piece) -> Spread | None:
    if not isinstance(root, Spread) or not {piece.file for piece in gone} <= {piece.file for piece in root.deltas}:
        return None
    names = {merged.file, *(piece.file for piece in gone)}
    return replace(root, deltas=(merged, *(piece for piece in root.deltas if piece.file not in names)))
