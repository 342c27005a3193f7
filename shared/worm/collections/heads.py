"""Head hints: `.worm.heads.json` beside the manifest, one line per entity.

Only a hint: it saves capture the search for the tail and, for a write of ours, the version listing. Missing or stale
heads cost requests, never correctness. It is written after manifest and indexes, so a head that stands here has been
folded into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from worm.codec.strict_json import JsonValue, dumps, loads_own
from worm.collections.changes import Change, decode_head, encode_head
from worm.collections.entries import Head
from worm.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model's entities, deleted ones included."""

    model: str
    heads: dict[str, Head] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """Sum of all seqs: grows with every recorded change, so content never repeats."""
        return sum(head.seq for head in self.heads.values())

    @property
    def count(self) -> int:
        return sum(head.live for head in self.heads.values())

    @property
    def known(self) -> int:
        """How many entities it knows of, deleted ones too."""
        return len(self.heads)

    @property
    def last_updated(self) -> str:
        return max((head.ts for head in self.heads.values()), default="")

    def get(self, entity_id: str) -> Head | None:
        return self.heads.get(entity_id)

    def folded(self, changes: Iterable[Change]) -> Heads | None:
        """With the newer ones of the changes; None when all are known."""
        newer = {
            change.id: change.head
            for change in changes
            if change.head is not None and change.head.seq > self._seq(change.id)
        }
        return Heads(self.model, self.heads | newer) if newer else None

    def ids(self) -> list[str]:
        return sorted(self.heads)

    def merged(self, others: Iterable[Heads]) -> Heads:
        """With what the others know newer of an entity."""
        heads = dict(self.heads)
        for other in others:
            for entity_id, head in other.heads.items():
                known = heads.get(entity_id)
                if known is None or head.seq > known.seq:
                    heads[entity_id] = head
        return Heads(self.model, heads)

    @classmethod
    def joined(cls, model: str, parts: Iterable[Heads]) -> Heads:
        """Parts of disjoint ranges, together."""
        return cls(model, {entity_id: head for part in parts for entity_id, head in part.heads.items()})

    def part(self, ids: Iterable[str]) -> Heads:
        return Heads(self.model, {entity_id: self.heads[entity_id] for entity_id in ids})

    def _seq(self, entity_id: str) -> int:
        head = self.heads.get(entity_id)
        return 0 if head is None else head.seq

    def encode(self) -> bytes:
        heads: dict[str, JsonValue] = {entity_id: encode_head(head) for entity_id, head in self.heads.items()}
        return dumps({"version": 1, "model": self.model, "revision": self.revision, "heads": heads})

    @classmethod
    def decode(cls, body: bytes, key: str) -> Heads:
        return cls.of_shape(loads_own(body, key=key), key)

    @classmethod
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Heads:
        if shape.get("version") != 1 or not isinstance(shape.get("heads"), dict):
            raise Corrupt("not a heads file of a version this code reads", key=key, hint="`worm repair` builds it anew")
        heads = cast("dict[str, list[JsonValue]]", shape["heads"])
        return cls(str(shape["model"]), {entity_id: decode_head(head) for entity_id, head in heads.items()})
