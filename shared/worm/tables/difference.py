"""What verifying finds: one thing that is not as the source says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the source says. `kind` is stable, for scripts."""

    kind: str
    model: str
    key: str
    detail: str
