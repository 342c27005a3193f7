"""Which keys of a bucket form collections and singletons.

`<parent>/<name>/<file>.json` is a candidate of `parent`. A parent is a *collection* (its names are ids) when all names
are uuids, ulids or numbers, or when there are at least two and it is no folder; a *folder* holds other collections
beside them, and its candidates are singletons (`org/settings/data.json` next to `org/customers/...`). What lies deeper
inside an entity's directory belongs to the entity and is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worm.collections.key_info import is_system_key
from worm.errors import Invalid
from worm.schema.idtypes import IdType, id_problem, segment_problem

KEYS_MAX = 1_000_000
SINGLETONS_MAX = 50  # of one folder; more are documents without a collection directory

_ID_PREFERENCE: tuple[IdType, ...] = ("uuid", "ulid", "int", "slug")

Candidates = dict[str, dict[str, list[str]]]
"""Parent directory to name to the files under it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Documents of one model to be. `ids` is empty for a singleton."""

    directory: str
    file: str
    ids: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        if not self.ids:
            return [f"{self.directory}/{self.file}"]
        return [f"{self.directory}/{name}/{self.file}" for name in self.ids]

    @property
    def collection(self) -> str:
        return self.directory.rpartition("/")[2]


def group_keys(keys: Iterable[str]) -> tuple[list[Group], list[str]]:
    """The groups, and the keys that belong to none."""
    candidates, skipped = _candidates(keys)
    groups: list[Group] = []
    collections: list[str] = []
    for parent in sorted(candidates, key=lambda name: (name.count("/"), name)):
        members = candidates[parent]
        if any(f"{parent}/".startswith(f"{collection}/") for collection in collections):
            skipped += _all_keys(parent, members)
            continue
        if _is_collection(parent, members, candidates):
            collections.append(parent)
            found, left = _collection(parent, members)
        else:
            found, left = _singletons(parent, members)
        groups += found
        skipped += left
    return _one_per_collection_name(groups, skipped)


def id_type_of(ids: Iterable[str]) -> IdType:
    """The narrowest id type of all these ids."""
    names = list(ids)
    for id_type in _ID_PREFERENCE:
        if all(id_problem(id_type, name) is None for name in names):
            return id_type
    return "string"


def _candidates(keys: Iterable[str]) -> tuple[Candidates, list[str]]:
    candidates: Candidates = {}
    skipped: list[str] = []
    for at, key in enumerate(keys):
        if at >= KEYS_MAX:
            raise Invalid(f"more than {KEYS_MAX} keys", hint="give a longer prefix")
        if is_system_key(key):
            continue
        *parents, file = key.split("/")
        if not parents or not file.endswith(".json") or any(segment_problem(part) for part in (*parents, file)):
            skipped.append(key)
            continue
        candidates.setdefault("/".join(parents[:-1]), {}).setdefault(parents[-1], []).append(file)
    return candidates, skipped


def _is_collection(parent: str, members: Mapping[str, list[str]], candidates: Candidates) -> bool:
    if not parent:
        return False
    if id_type_of(members) in ("uuid", "ulid", "int"):
        return True
    prefix = f"{parent}/"
    is_folder = any(
        other.startswith(prefix) and other[len(prefix) :].partition("/")[0] not in members for other in candidates
    )
    return len(members) > 1 and not is_folder


def _collection(parent: str, members: Mapping[str, list[str]]) -> tuple[list[Group], list[str]]:
    """The most common file name is the document; ties go to the first by name."""
    counts = Counter(file for files in members.values() for file in files)
    document = min(counts, key=lambda file: (-counts[file], file))
    ids = tuple(sorted(name for name, files in members.items() if document in files))
    left = [key for key in _all_keys(parent, members) if not key.endswith(f"/{document}")]
    return [Group(parent, document, ids)], left


def _singletons(parent: str, members: Mapping[str, list[str]]) -> tuple[list[Group], list[str]]:
    """A directory with exactly one file is a singleton; what looks like entities without a collection is not."""
    named = {name: files for name, files in members.items() if id_type_of([name]) in ("slug", "string")}
    fitting = {name: files[0] for name, files in named.items() if len(files) == 1}
    if len(fitting) > SINGLETONS_MAX:
        fitting = {}
    groups = [Group(f"{parent}/{name}" if parent else name, file) for name, file in fitting.items()]
    return groups, _all_keys(parent, {name: files for name, files in members.items() if name not in fitting})


def _all_keys(parent: str, members: Mapping[str, list[str]]) -> list[str]:
    prefix = f"{parent}/" if parent else ""
    return [f"{prefix}{name}/{file}" for name, files in members.items() for file in files]


def _one_per_collection_name(groups: list[Group], skipped: list[str]) -> tuple[list[Group], list[str]]:
    """Two collections of one name would share system directories; the one with more documents stays."""
    kept: dict[str, Group] = {}
    for group in groups:
        rival = kept.get(group.collection)
        if rival is None:
            kept[group.collection] = group
            continue
        winner, loser = (group, rival) if len(group.ids) > len(rival.ids) else (rival, group)
        kept[group.collection] = winner
        skipped += loser.keys
    return list(kept.values()), skipped
