"""Names of layers below the directory of a branch: the one place that formats and parses them.

A name has what you must know to delete the object safely if no root names it:

    delta/L<low>-L<high>-e<epoch>-<id>.delta     flushed from the log; the epoch of its last segment
    delta/L<low>-L<high>-c<epoch>-<id>.delta     merged by the compaction of that epoch
    image/img-L<lsn>-c<epoch>-<id>.image         made by the compaction of that epoch

A flushed layer can only ever be published while the log is applied up to the LSN before `low`; a merged one or an image
only while its compaction is the newest. Both conditions change from true to false once, and forever
(`pages/collect.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["flushed", "merged", "image"]
_DIGITS = 20
_LSN = rf"L([0-9]{{{_DIGITS}}})"
_MADE = r"([ec])(0|[1-9][0-9]*)-([0-9A-Z]{26})"
_DELTA = re.compile(rf"delta/{_LSN}-{_LSN}-{_MADE}\.delta")
_IMAGE = re.compile(rf"image/img-{_LSN}-{_MADE}\.image")


@dataclass(frozen=True, slots=True)
class LayerName:
    """The name of a layer below the directory of its branch. An image has one LSN, `high` and `low` at once."""

    kind: Kind
    low: int
    high: int
    epoch: int
    id: str

    def __str__(self) -> str:
        low, high = f"L{self.low:0{_DIGITS}d}", f"L{self.high:0{_DIGITS}d}"
        if self.kind == "image":
            return f"image/img-{high}-c{self.epoch}-{self.id}.image"
        return f"delta/{low}-{high}-{'e' if self.kind == 'flushed' else 'c'}{self.epoch}-{self.id}.delta"

    @classmethod
    def parse(cls, name: str) -> LayerName | None:
        """None: not one of our names, so we would never delete it."""
        if delta := _DELTA.fullmatch(name):
            kind: Kind = "flushed" if delta[3] == "e" else "merged"
            return cls(kind, int(delta[1]), int(delta[2]), int(delta[4]), delta[5])
        image = _IMAGE.fullmatch(name)
        if image is None or image[2] != "c":
            return None
        return cls("image", int(image[1]), int(image[1]), int(image[3]), image[4])
