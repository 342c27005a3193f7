"""Names of layers. A name tells what must be known to delete the object safely when no root names it:

    delta/L<low>-L<high>-e<epoch>-<id>.delta     flushed from the log; the epoch of its last segment
    delta/L<low>-L<high>-c<epoch>-<id>.delta     merged by the compaction of that epoch
    image/img-L<lsn>-c<epoch>-<id>.image         made by the compaction of that epoch

A flushed layer can only ever be published while the log is applied up to the LSN before `low`; a merged one or an image
only while its compaction is the newest. Both turn from yes to no once and for ever (`collect.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DIGITS = 20
_FLUSHED = re.compile(r"delta/L([0-9]{20})-L[0-9]{20}-e[0-9]+-[0-9A-Z]{26}\.delta")
_COMPACTED = re.compile(r"(?:delta/L[0-9]{20}-L[0-9]{20}|image/img-L[0-9]{20})-c([0-9]+)-[0-9A-Z]{26}\.(?:delta|image)")


@dataclass(frozen=True, slots=True)
class LayerName:
    """What the name of a layer says: exactly one of the two is known."""

    flushed_from: int | None = None
    compaction: int | None = None


def flushed_name(low: int, high: int, epoch: int, id: str) -> str:
    return f"delta/L{low:0{DIGITS}d}-L{high:0{DIGITS}d}-e{epoch}-{id}.delta"


def merged_name(low: int, high: int, epoch: int, id: str) -> str:
    return f"delta/L{low:0{DIGITS}d}-L{high:0{DIGITS}d}-c{epoch}-{id}.delta"


def image_name(lsn: int, epoch: int, id: str) -> str:
    return f"image/img-L{lsn:0{DIGITS}d}-c{epoch}-{id}.image"


def parse_name(name: str) -> LayerName | None:
    """None: no name of ours, and nothing that we would delete."""
    if flushed := _FLUSHED.fullmatch(name):
        return LayerName(flushed_from=int(flushed[1]))
    if compacted := _COMPACTED.fullmatch(name):
        return LayerName(compaction=int(compacted[1]))
    return None
