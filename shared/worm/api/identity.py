"""The caller, and what it may do."""

from __future__ import annotations

from worm.values import dataclass

SCOPES = ("read", "write", "admin")
"""Each includes the previous ones."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`actor` is the author of what the caller writes. `models` None: all of them."""

    actor: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    is_local: bool = False

    def may(self, scope: str) -> bool:
        """Does one of the scopes include this one?"""
        return any(one in self.scopes for one in SCOPES[SCOPES.index(scope) :])

    def sees(self, model: str) -> bool:
        return self.models is None or model in self.models


EVERYTHING = Identity("local", frozenset(SCOPES), None, is_local=True)
"""The local user, without any credentials."""
