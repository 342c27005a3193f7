"""A model's path, `#folder/#folder/@collection/(id:type)`: where its documents are.

Zero or more folders, one collection, and a typed id. Without the id the model is a *singleton*: one document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worm.schema.idtypes import ID_TYPES, IdType, segment_problem

DIRECTORY_BYTES_MAX = 400  # with the longest id, file and system names a whole key stays under S3's 1,024 bytes
LOG_FOLDER = "db"  # `db/` holds the commit logs

_ID = re.compile(r"\((\w+):(\w+)\)")
_EXPECTED = "expected #folder/@collection/(id:type)"


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A parsed path. `id_type` is None for a singleton."""

    folders: tuple[str, ...]
    collection: str
    id_type: IdType | None

    @property
    def directory(self) -> str:
        """`org/customers`: folders and collection, without a slash at the end."""
        return "/".join((*self.folders, self.collection))

    def __str__(self) -> str:
        identifier = f"/(id:{self.id_type})" if self.id_type else ""
        return "".join(f"#{folder}/" for folder in self.folders) + f"@{self.collection}{identifier}"


def parse_path(text: str) -> ModelPath:
    """Parse, or raise ValueError with the reason."""
    parts = text.split("/")
    id_type = _id_type(parts.pop()) if len(parts) > 1 and parts[-1].startswith("(") else None
    collection = parts.pop()
    if not collection.startswith("@"):
        raise ValueError(f"must name its collection with @, {_EXPECTED}")
    folders = tuple(_folder(part) for part in parts)
    path = ModelPath(folders, _segment("collection", collection[1:]), id_type)
    if (folders or (path.collection,))[0] == LOG_FOLDER:
        raise ValueError(f"the first folder must not be {LOG_FOLDER!r}, which holds the commit logs")
    if len(path.directory) > DIRECTORY_BYTES_MAX:
        raise ValueError(f"folders and collection are longer than {DIRECTORY_BYTES_MAX} bytes")
    return path


def _folder(part: str) -> str:
    if not part.startswith("#"):
        raise ValueError(f"part {part!r} must start with # (folder), {_EXPECTED}")
    return _segment("folder", part[1:])


def _segment(role: str, name: str) -> str:
    problem = segment_problem(name)
    if problem:
        raise ValueError(f"{role} {name!r} {problem}")
    return name


def _id_type(part: str) -> IdType:
    match = _ID.fullmatch(part)
    if not match or match[1] != "id":
        raise ValueError(f"part {part!r} must be (id:type)")
    for known in ID_TYPES:
        if match[2] == known:
            return known
    raise ValueError(f"id type {match[2]!r} is unknown, choose one of {', '.join(ID_TYPES)}")
