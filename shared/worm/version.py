"""How our requests name themselves, so that the embedded AWS and access logs can count them by role."""

from __future__ import annotations

VERSION = "0.1.0"
DEFAULT_ROLE = "sdk"


def user_agent(role: str) -> str:
    """`worm/0.1.0 role/capture`."""
    return f"worm/{VERSION} role/{role}"
