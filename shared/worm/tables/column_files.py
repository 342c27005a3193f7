"""Column files beside the partitions of a spread manifest: `partition-3-<hash>.columns` says what
`partition-3-<hash>.json` says, in bytes that a scan reads quicker.

They are never needed for the truth. Whoever finds one missing or damaged reads the partition, and a rebuild writes it
anew. They are written before the root names their partition and deleted when no root has named it for a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from worm.errors import Corrupt
from worm.store.base import Store
from worm.store.parallel import in_parallel
from worm.tables.column_format import REPAIR, encode_columns
from worm.tables.column_rows import ColumnRows
from worm.tables.manifest import Manifest
from worm.tables.root import Piece

READERS = 32
_PARTITION, _COLUMNS = ".json", ".columns"


def column_file(file: str) -> str:
    """The name of the column file of a partition."""
    return file.removesuffix(_PARTITION) + _COLUMNS


def column_files(pieces: Iterable[Piece]) -> set[str]:
    """The column files that there must be."""
    return {column_file(piece.file) for piece in pieces if piece.columns}


class ColumnFiles:
    """The column files of one directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def drafted(self, file: str, part: Manifest) -> tuple[int, bytes | None]:
        """The size of the column file of a partition, and its bytes unless it is known to exist. Deltas get none: they
        are small and read whole anyhow."""
        if not file.startswith("partition-"):
            return 0, None
        if file in self._sizes:
            return self._sizes[file], None
        body = encode_columns(part, _hash(file))
        return len(body), body

    def put(self, file: str, body: bytes) -> None:
        """Not conditional: whoever wrote it before wrote the same, and what is damaged is mended."""
        self._store.put(self._key(file), body)
        self._sizes[file] = len(body)

    def learn(self, pieces: Iterable[Piece]) -> None:
        """A root names these, so their column files exist."""
        self._sizes |= {piece.file: piece.columns for piece in pieces if piece.columns}

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Forget what is known of all others."""
        named = {piece.file for piece in pieces}
        self._sizes = {file: size for file, size in self._sizes.items() if file in named}

    def get(self, pieces: Sequence[Piece], fields: Sequence[str] = ()) -> list[ColumnRows | Corrupt]:
        """Concurrent reads; `Corrupt` in the place of one that is gone or damaged. Whichever thread read one checks it
        and decodes the cells of the fields, while others wait for theirs."""
        return in_parallel(lambda piece: self._read(piece, fields), pieces, READERS)

    def audit(self, pieces: Iterable[Piece], partitions: Iterable[Manifest]) -> Iterator[tuple[str, str, str]]:
        """What differs between column files and their partitions: kind, key, detail."""
        for piece, partition in zip(pieces, partitions, strict=True):
            key = self._key(piece.file)
            try:
                (rows,) = self.get([piece])
                if isinstance(rows, Corrupt):
                    raise rows
                if rows.manifest(partition.model).encode() != partition.encode():
                    yield "columns-differ", key, f"does not say what its partition says ({REPAIR})"
            except Corrupt as damage:
                yield "columns-damaged", key, f"{damage.message} ({REPAIR})"

    def _read(self, piece: Piece, fields: Sequence[str]) -> ColumnRows | Corrupt:
        key = self._key(piece.file)
        found = self._store.get(key)
        if found is None:
            return Corrupt("the column file is gone", key=key, hint=REPAIR)
        try:
            rows = ColumnRows(found.body, key, _hash(piece.file), piece.size)
            rows.prepare(fields)
        except Corrupt as damage:
            return damage
        return rows

    def _key(self, file: str) -> str:
        return self._directory + column_file(file)


def _hash(file: str) -> str:
    return file.removesuffix(_PARTITION).rpartition("-")[2]
